// Arrows, and dashed ones for facts that have ended: sigma's own program with dashes in its shaders.
import {
  EdgeClampedProgram, createEdgeArrowHeadProgram, createEdgeArrowProgram, createEdgeCompoundProgram,
} from "sigma/rendering";

const HEAD = { lengthToThicknessRatio: 3.4, widenessToThicknessRatio: 2.8 };

class DashedBody extends EdgeClampedProgram {
  getDefinition() {
    const own = super.getDefinition();
    const along = "varying float v_feather;\nvarying float v_along;";
    const vertex = own.VERTEX_SHADER_SOURCE.replace("varying float v_feather;", along).replace(
      "v_normal = unitNormal;",
      "v_normal = unitNormal;\n  v_along = a_positionCoef * length(a_positionEnd - a_positionStart) / u_correctionRatio;",
    );
    const fragment = own.FRAGMENT_SHADER_SOURCE.replace("varying float v_feather;", along).replace(
      "float dist = length(v_normal)",
      "if (mod(v_along, 12.0) > 6.5) discard;\n  float dist = length(v_normal)",
    );
    return { ...own, VERTEX_SHADER_SOURCE: vertex, FRAGMENT_SHADER_SOURCE: fragment };
  }
}

export const arrow = createEdgeArrowProgram(HEAD);
export const dashed = createEdgeCompoundProgram([DashedBody, createEdgeArrowHeadProgram(HEAD)]);
