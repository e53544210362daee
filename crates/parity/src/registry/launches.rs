//! How many kernels ops launch.

/// Op, and the most kernels for its result and for all gradients, where that is more than one each way. A faster op makes its
/// numbers smaller; none grows without a reason.
const MOST: &[(&str, [u64; 2])] = &[
    ("softmax", [5, 4]),
    ("log_softmax", [6, 4]),
    ("add", [1, 2]),
    ("sub", [1, 2]),
    ("mul", [1, 3]),
    ("div", [1, 3]),
    ("pow", [2, 3]),
    ("maximum", [1, 3]),
    ("minimum", [1, 3]),
    ("addcmul", [1, 4]),
    ("addcdiv", [1, 4]),
    ("lerp", [1, 4]),
    // A row for one operand, and for the other one between two sums.
    ("where_cond", [1, 4]),
    ("clamp", [2, 3]),
    ("mean", [1, 2]),
    // Of rows that a group cannot hold: two scans, and products.
    ("prod", [1, 8]),
    // Without elements there is nothing to begin with: its composite.
    ("logsumexp", [2, 1]),
    ("max", [2, 2]),
    ("min", [2, 2]),
    ("cumsum", [1, 2]),
    ("narrow", [0, 2]),
    ("slice", [0, 2]),
    ("select", [0, 2]),
    ("split", [0, 24]),
    ("concat", [3, 3]),
    ("stack", [3, 3]),
    ("fill_", [2, 0]),
    ("copy_", [2, 0]),
    ("add_", [2, 0]),
    ("mul_", [2, 0]),
    ("gather", [1, 2]),
    ("scatter_add", [2, 2]),
    // The lists of who adds what, and the sums; as below, after the factor.
    ("scatter_add_", [2, 1]),
    ("scatter", [2, 10]),
    ("index_select", [1, 2]),
    ("index_add", [3, 3]),
    ("index_add_", [3, 1]),
    ("index", [4, 4]),
    ("index_put", [6, 10]),
    ("index_put_", [3, 1]),
    ("scatter_sum", [2, 1]),
    ("scatter_mean", [2, 1]),
    ("scatter_max", [2, 1]),
    // How many there are, and where they are: two launches and three where a mask is counted in parts.
    ("nonzero", [5, 0]),
    ("topk", [5, 2]),
    ("sort", [5, 2]),
    ("embedding", [1, 5]),
    ("embedding_rmsnorm", [1, 7]),
    ("apply_rotary_embedding", [1, 2]),
    ("matmul", [3, 6]),
    // A vendor's library wants what is added in its output, and activations exact or not at all.
    ("gemm", [2, 4]),
    ("linear", [2, 3]),
    ("gemm_bias", [2, 5]),
    ("mse_loss", [2, 1]),
    ("l1_loss", [2, 1]),
    ("smooth_l1_loss", [2, 1]),
    ("huber_loss", [2, 2]),
    ("bce_loss", [3, 3]),
    ("bce_with_logits", [4, 3]),
    ("kl_div", [2, 1]),
    ("focal_loss", [2, 1]),
    ("cross_entropy", [8, 6]),
    // Without elements there is nothing to launch a kernel for: its composite.
    ("nll_loss", [8, 2]),
    ("triplet_loss", [2, 1]),
    ("contrastive_loss", [2, 1]),
    ("layer_norm", [1, 2]),
    ("rms_norm", [1, 2]),
    // Where the largest element is, and what it is.
    ("global_max_pool2d", [2, 1]),
    ("adaptive_max_pool1d", [2, 1]),
    ("adaptive_max_pool2d", [2, 1]),
    ("adaptive_max_pool3d", [2, 1]),
    // The same, in parts where the volume is long.
    ("global_max_pool3d", [3, 1]),
    // Of windows that are all of a volume, as the mean's.
    ("avg_pool1d", [1, 2]),
    ("avg_pool2d", [1, 2]),
    ("avg_pool3d", [1, 2]),
    ("global_avg_pool2d", [1, 2]),
    ("adaptive_avg_pool1d", [1, 2]),
    ("adaptive_avg_pool2d", [1, 2]),
    ("adaptive_avg_pool3d", [1, 2]),
    ("global_avg_pool3d", [2, 2]),
    // Two each way, after copies of the running statistics.
    ("batch_norm", [4, 2]),
    ("batch_norm_running", [5, 0]),
    ("group_norm", [1, 2]),
    // As above, and two that count the batch.
    ("instance_norm", [4, 2]),
    ("instance_norm_running", [7, 0]),
    ("sgd", [13, 0]),
    ("adam", [17, 0]),
    ("adamw", [18, 0]),
    ("rmsprop", [15, 0]),
    ("adagrad", [14, 0]),
    ("lars", [17, 0]),
    ("lamb", [20, 0]),
    ("muon", [101, 0]),
    ("clip_grad_norm", [10, 0]),
    ("clip_grad_value", [3, 0]),
    ("unscale_", [9, 0]),
    ("grad_scaler", [14, 0]),
    ("accumulate_grad", [2, 0]),
];

/// The numbers of an op.
pub(super) fn of(op: &str) -> [u64; 2] {
    MOST.iter().find(|(name, _)| *name == op).map_or([1, 1], |(_, most)| *most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::find;

    #[test]
    fn every_name_is_an_op() {
        for (name, _) in MOST {
            assert!(find(name).is_some(), "{name}");
        }
    }
}
