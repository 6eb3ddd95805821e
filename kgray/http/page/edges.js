// Arrows whose body is dashed where `dashed` is set, as for facts that have ended: sigma's own program with
// one attribute more. One program draws both, so an edge can change at a moment without a new index.
import { EdgeClampedProgram, createEdgeArrowHeadProgram, createEdgeCompoundProgram } from "sigma/rendering";

const HEAD = { lengthToThicknessRatio: 3.4, widenessToThicknessRatio: 2.8 };

class Body extends EdgeClampedProgram {
  getDefinition() {
    const own = super.getDefinition();
    const varyings = "varying float v_feather;\nvarying float v_along;\nvarying float v_dashed;";
    const vertex = own.VERTEX_SHADER_SOURCE.replace("varying float v_feather;", `${varyings}\nattribute float a_dashed;`).replace(
      "v_normal = unitNormal;",
      "v_normal = unitNormal;\n  v_dashed = a_dashed;\n  v_along = a_positionCoef * length(a_positionEnd - a_positionStart) / u_correctionRatio;",
    );
    const fragment = own.FRAGMENT_SHADER_SOURCE.replace("varying float v_feather;", varyings).replace(
      "float dist = length(v_normal)",
      "if (v_dashed > 0.5 && mod(v_along, 12.0) > 6.5) discard;\n  float dist = length(v_normal)",
    );
    const dashed = { name: "a_dashed", size: 1, type: WebGLRenderingContext.FLOAT };
    return { ...own, VERTEX_SHADER_SOURCE: vertex, FRAGMENT_SHADER_SOURCE: fragment, ATTRIBUTES: [...own.ATTRIBUTES, dashed] };
  }

  processVisibleItem(edge, start, source, target, data) {
    super.processVisibleItem(edge, start, source, target, data);
    this.array[start + this.STRIDE - 1] = data.dashed ? 1 : 0;
  }
}

export const arrow = createEdgeCompoundProgram([Body, createEdgeArrowHeadProgram(HEAD)]);
