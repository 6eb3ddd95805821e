// ForceAtlas2 in a worker: positions come back several times a second, until they are settled.
import iterate from "graphology-layout-forceatlas2/iterate.js";

// Between two pictures: each is drawn anew, which takes long where there are many nodes.
const sliceMs = (nodes) => (nodes < 300 ? 60 : 1200);

onmessage = ({ data: { nodes, edges, settings, iterations, run } }) => {
  const matrix = new Float32Array(nodes);
  const links = new Float32Array(edges);
  let done = 0;
  const slice = () => {
    const until = performance.now() + sliceMs(matrix.length / 10);
    while (done < iterations && performance.now() < until) {
      iterate(settings, matrix, links);
      done += 1;
    }
    const positions = new Float32Array((matrix.length / 10) * 2);
    for (let i = 0; i < matrix.length; i += 10) positions.set([matrix[i], matrix[i + 1]], i / 5);
    postMessage({ run, positions, settled: done >= iterations }, [positions.buffer]);
    if (done < iterations) setTimeout(slice, 0);
  };
  slice();
};
