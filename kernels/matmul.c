// matmul
