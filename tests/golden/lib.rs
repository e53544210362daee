//! Values and gradients from PyTorch, by which isograd's ops are checked. README.md describes the files.

macro_rules! families {
    ($($name:literal)*) => {
        /// Name, cases and tensors of each family.
        pub const FILES: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!($name, ".json")),
            include_bytes!(concat!($name, ".safetensors")),
        )),*];
    };
}

families! {
    "attention" "conv" "elementwise/activation" "elementwise/binary" "elementwise/copy" "elementwise/fused_pointwise" "elementwise/in_place"
    "elementwise/unary" "graph/edges" "graph/mesh" "graph/messages" "image/pooling" "image/resampling" "indexing/embedding" "indexing/index"
    "indexing/segment" "indexing/select" "linalg" "loss" "matrix/gemm_bias" "matrix/matmul" "matrix/products" "normalization/channel_norm"
    "normalization/norm" "normalization/softmax" "optimizer" "random" "recurrent" "reduction" "sequence" "shape/arrange" "shape/concat"
    "shape/factory" "shape/pad" "shape/view" "sparse"
}
