//! Ops at the sizes where kernels change their ways: rows longer than registers hold, sums cut into parts, tiles that are
//! whole, cut off or many along K, runs that are merged, indices that meet. In f32 and f16, and products in bf16 too, against
//! the CPU in f64, forward and backward; the sizes are those of a device with two multiprocessors, and a larger one computes
//! them all the same.

use isograd::ops::Total;
use isograd::ops::loss::{CrossEntropy, Reduction};
use isograd::ops::{
    Activation, AvgPool, Conv, EmbeddingOptions, GemmBias, Index, MaxPool, Neighbors, Order, Padding, Put, total,
};
use isograd::tape::BackwardOptions;
use isograd::{DType, Device, Result, Tensor};
use isograd_parity::compare::close_values;
use isograd_tests::cpu;
use isograd_tests::harness::{text, trial};
use libtest_mimic::Trial;

type Run = fn(&[Tensor]) -> Result<Tensor>;

/// An op, its sizes, and the shapes of the inputs.
struct Size {
    op: &'static str,
    aspect: &'static str,
    shapes: &'static [&'static [usize]],
    run: Run,
}

const fn size(op: &'static str, aspect: &'static str, shapes: &'static [&'static [usize]], run: Run) -> Size {
    Size { op, aspect, shapes, run }
}

const MATMUL: Run = |x| x[0].matmul(&x[1]);
const GEMM_BIAS: Run = |x| {
    let activation = Activation::Gelu(Default::default());
    x[0].gemm_bias(&x[1], Some(&x[2]), &GemmBias { activation, ..Default::default() })
};

const PADDED: Conv<2> = Conv { stride: [1; 2], padding: Padding::Each([1; 2]), dilation: [1; 2], groups: 1 };
const CONV: Run = |x| x[0].conv2d(&x[1], None, &PADDED);

/// Each row has four neighbours, some of which are absent.
const MESH_CONV: Run = |x| {
    let rows = x[0].dims()[0];
    x[0].mesh_conv(&Neighbors::new(&indices(&x[0], &[rows, 4], rows as i64 + 1)?.sub_scalar(1)?)?, &x[1], None)
};

const SIZES: &[Size] = &[
    size("matmul", "large_tiles", &[&[131, 40], &[40, 133]], MATMUL),
    size("matmul", "large_tiles_of_words", &[&[128, 48], &[48, 256]], MATMUL),
    size("matmul", "large_tiles_of_words_cut_off", &[&[136, 72], &[72, 264]], MATMUL),
    size("matmul", "words_cut_along_k", &[&[40, 600], &[600, 24]], MATMUL),
    size("matmul", "medium_tiles", &[&[2, 70, 50], &[2, 50, 67]], MATMUL),
    size("matmul", "small_tiles", &[&[33, 40], &[40, 34]], MATMUL),
    size("matmul", "tall", &[&[130, 100], &[100, 9]], MATMUL),
    size("matmul", "flat", &[&[9, 100], &[100, 130]], MATMUL),
    size("matmul", "cut_along_k", &[&[15, 900], &[900, 14]], MATMUL),
    size("matmul", "columns", &[&[60, 66], &[67, 60]], |x| x[0].t()?.matmul(&x[1].t()?)),
    size("matmul", "vector_on_the_right", &[&[139, 300], &[300, 1]], MATMUL),
    size("matmul", "vector_on_the_left", &[&[1, 300], &[300, 70]], MATMUL),
    size("matmul", "long_dot", &[&[1, 5000], &[5000, 1]], MATMUL),
    size("conv2d", "wide_tiles_of_words", &[&[2, 32, 10, 20], &[256, 32, 3, 3]], CONV),
    size("conv2d", "tiles_of_words", &[&[1, 64, 16, 24], &[64, 64, 3, 3]], CONV),
    size("conv2d", "tiles_of_words_cut_off", &[&[1, 40, 20, 20], &[72, 40, 3, 3]], CONV),
    size("conv2d", "strided_tiles_of_words", &[&[1, 64, 25, 25], &[64, 64, 3, 3]], |x| {
        x[0].conv2d(&x[1], None, &Conv { stride: [2; 2], ..PADDED })
    }),
    size("conv2d", "words_with_channels_of_zeros", &[&[1, 3, 24, 24], &[48, 3, 5, 5]], |x| {
        x[0].conv2d(&x[1], None, &Conv { padding: Padding::Each([2; 2]), ..PADDED })
    }),
    size("conv2d", "depthwise_blocks", &[&[4, 16, 21, 48], &[16, 1, 3, 3]], |x| {
        x[0].conv2d(&x[1], None, &Conv { groups: 16, ..PADDED })
    }),
    size("conv2d", "depthwise_blocks_cut_off", &[&[4, 16, 22, 47], &[16, 1, 5, 3]], |x| {
        x[0].conv2d(&x[1], None, &Conv { groups: 16, padding: Padding::Each([2, 1]), ..PADDED })
    }),
    size("conv2d", "depthwise_channels_last", &[&[4, 40, 21, 50], &[40, 1, 3, 3]], |x| {
        x[0].to_channels_last()?.conv2d(&x[1], None, &Conv { groups: 40, ..PADDED })
    }),
    size("conv2d", "strided_depthwise_channels_last", &[&[4, 48, 33, 42], &[48, 1, 3, 5]], |x| {
        let conv = Conv { groups: 48, stride: [2; 2], padding: Padding::Each([1, 2]), ..PADDED };
        x[0].to_channels_last()?.conv2d(&x[1], None, &conv)
    }),
    size("mesh_conv", "tiles_of_words", &[&[400, 64], &[72, 320]], MESH_CONV),
    size("mesh_conv", "words_cut_along_k", &[&[1100, 32], &[32, 160]], MESH_CONV),
    size("gemm_bias", "gelu", &[&[67, 50], &[50, 66], &[66]], GEMM_BIAS),
    size("gemm_bias", "gelu_of_words", &[&[72, 56], &[56, 104], &[104]], GEMM_BIAS),
    size("mul", "gradient_of_columns", &[&[700, 96], &[96]], |x| x[0].mul(&x[1])),
    size("mul", "gradient_of_cut_columns", &[&[9001, 33], &[33]], |x| x[1].mul(&x[0])),
    size("mul", "gradient_of_rows", &[&[5, 9000], &[5, 1]], |x| x[0].mul(&x[1])),
    size("mul", "gradient_of_channels", &[&[6, 7, 10, 15], &[7, 1, 1]], |x| x[0].mul(&x[1])),
    size("mul", "gradient_of_one", &[&[3, 70, 100], &[1]], |x| x[0].mul(&x[1])),
    size("lerp", "weight_of_rows", &[&[300, 101], &[300, 101], &[300, 1]], |x| x[0].lerp(&x[1], &x[2])),
    size("where_cond", "mask_of_rows", &[&[300, 104], &[104], &[300, 1]], |x| {
        x[2].lt_scalar(0.25)?.where_cond(&x[0], &x[1])
    }),
    size("softmax", "short_rows", &[&[5, 33]], |x| x[0].softmax(-1)),
    size("softmax", "rows", &[&[3, 1025]], |x| x[0].softmax(-1)),
    size("softmax", "long_rows", &[&[2, 9001]], |x| x[0].softmax(-1)),
    size("softmax", "columns", &[&[300, 7]], |x| x[0].softmax(0)),
    size("softmax", "columns_of_words", &[&[3, 700, 16]], |x| x[0].softmax(1)),
    size("softmax", "many_columns", &[&[300, 600]], |x| x[0].softmax(0)),
    size("softmax", "short_columns", &[&[70, 9, 12]], |x| x[0].softmax(1)),
    size("softmax", "many_short_rows", &[&[700, 11]], |x| x[0].softmax(-1)),
    size("log_softmax", "rows", &[&[3, 1025]], |x| x[0].log_softmax(-1)),
    size("log_softmax", "columns", &[&[1300, 6]], |x| x[0].log_softmax(0)),
    size("layer_norm", "rows", &[&[5, 333], &[333], &[333]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)),
    size("layer_norm", "long_rows", &[&[2, 9001], &[9001], &[9001]], |x| {
        x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)
    }),
    // Longer than registers and local memory hold.
    size("layer_norm", "longest_rows", &[&[2, 70001], &[70001], &[70001]], |x| {
        x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)
    }),
    size("layer_norm", "longest_rows_far_from_zero", &[&[2, 70000]], |x| {
        x[0].mul_scalar(8)?.round()?.add_scalar(500)?.layer_norm(1, None, None, 1e-5)
    }),
    size("layer_norm", "many_rows", &[&[700, 9], &[9], &[9]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5)),
    size("rms_norm", "rows", &[&[5, 1030], &[1030]], |x| x[0].rms_norm(1, Some(&x[1]), 1e-5)),
    size("rms_norm", "longest_rows", &[&[2, 70001], &[70001]], |x| x[0].rms_norm(1, Some(&x[1]), 1e-5)),
    size("group_norm", "longest_rows", &[&[2, 4, 40000], &[4], &[4]], |x| {
        x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5)
    }),
    size("sum", "of_all", &[&[70001]], |x| x[0].sum(..)),
    size("mean", "of_rows", &[&[5, 2051]], |x| x[0].mean(-1)),
    size("sum", "of_columns", &[&[2051, 5]], |x| x[0].sum(0)),
    size("sum", "in_the_middle", &[&[3, 700, 5]], |x| x[0].sum(1)),
    size("max", "of_rows", &[&[5, 2051]], |x| Ok(x[0].max(-1)?.0)),
    // Where a row begins to be cut into parts: of 16384 elements in f16, half as many in f32.
    size("sum", "of_almost_two_parts", &[&[32767]], |x| x[0].sum(..)),
    size("sum", "of_two_parts", &[&[32768]], |x| x[0].sum(..)),
    size("sum", "of_two_parts_and_one", &[&[32769]], |x| x[0].sum(..)),
    size("amax", "of_parts", &[&[70001]], |x| x[0].amax(..)),
    size("var", "of_parts", &[&[70001]], |x| x[0].var(.., 1.0)),
    size("logsumexp", "of_parts", &[&[70001]], |x| x[0].logsumexp(..)),
    size("mse_loss", "of_parts", &[&[69001], &[69001]], |x| x[0].mse_loss(&x[1], Reduction::Mean)),
    // As many rows as are cut, and more.
    size("mean", "of_rows_in_parts", &[&[16, 32800]], |x| x[0].mean(-1)),
    size("mean", "of_rows_in_no_parts", &[&[17, 32800]], |x| x[0].mean(-1)),
    size("amin", "of_rows_in_parts", &[&[3, 33001]], |x| x[0].amin(-1)),
    size("max", "of_rows_in_parts", &[&[3, 70001]], |x| Ok(x[0].max(-1)?.0)),
    size("logsumexp", "of_rows_in_parts", &[&[3, 33001]], |x| x[0].logsumexp(-1)),
    size("var", "of_rows_in_parts", &[&[3, 33001]], |x| x[0].var(-1, 1.0)),
    size("amax", "ties", &[&[70001]], |x| x[0].unsqueeze(0)?.broadcast_to((3, 70001))?.amax(..)),
    size("amax", "ties_of_columns", &[&[2051, 5]], |x| x[0].unsqueeze(0)?.broadcast_to((3, 2051, 5))?.amax([0, 1])),
    // Windows that a thread, the threads of a wave and those of a group read.
    size("avg_pool2d", "words_of_a_wave", &[&[3, 40, 48]], |x| x[0].avg_pool2d(&AvgPool::new([20, 24]))),
    size("avg_pool2d", "padding_in_a_group", &[&[2, 90, 91]], |x| {
        x[0].avg_pool2d(&AvgPool { stride: [40, 30], padding: [10, 20], ..AvgPool::new([50, 60]) })
    }),
    size("max_pool2d", "padding_in_a_wave", &[&[2, 50, 33]], |x| {
        x[0].max_pool2d(&MaxPool { stride: [7, 9], padding: [5, 6], dilation: [2, 3], ..MaxPool::new([11, 7]) })
    }),
    // Results of a group that go through local memory.
    size("avg_pool1d", "across_lines", &[&[700, 64]], |x| {
        x[0].avg_pool1d(&AvgPool { stride: [3], ceil_mode: true, ..AvgPool::new([2]) })
    }),
    size("max_pool1d", "across_lines", &[&[700, 64]], |x| {
        x[0].max_pool1d(&MaxPool { stride: [3], ..MaxPool::new([2]) })
    }),
    size("max_pool2d", "positions", &[&[3, 60, 64]], |x| {
        Ok(x[0].max_pool2d_with_indices(&MaxPool { stride: [2, 2], padding: [1, 1], ..MaxPool::new([3, 3]) })?.0)
    }),
    size("adaptive_max_pool1d", "in_a_group", &[&[2, 9001]], |x| x[0].adaptive_max_pool1d([2])),
    size("adaptive_max_pool3d", "in_a_wave", &[&[2, 3, 5, 301]], |x| x[0].adaptive_max_pool3d([2, 2, 4])),
    size("adaptive_avg_pool2d", "in_a_group", &[&[2, 70, 301]], |x| x[0].adaptive_avg_pool2d([3, 2])),
    size("adaptive_avg_pool3d", "in_a_wave", &[&[2, 3, 5, 301]], |x| x[0].adaptive_avg_pool3d([2, 2, 4])),
    // Windows of columns: of one band in a group, whose lines and columns several threads share, and of many.
    size("adaptive_max_pool2d", "of_shared_lines", &[&[2, 131, 77]], |x| x[0].adaptive_max_pool2d([3, 2])),
    size("adaptive_max_pool3d", "of_columns", &[&[3, 7, 12, 33]], |x| x[0].adaptive_max_pool3d([2, 5, 4])),
    size("adaptive_max_pool2d", "of_many_bands", &[&[300, 9, 14]], |x| x[0].adaptive_max_pool2d([4, 11])),
    size("adaptive_avg_pool2d", "of_shared_lines", &[&[2, 131, 77]], |x| x[0].adaptive_avg_pool2d([3, 2])),
    size("adaptive_avg_pool3d", "of_columns", &[&[3, 7, 12, 33]], |x| x[0].adaptive_avg_pool3d([2, 5, 4])),
    size("adaptive_avg_pool1d", "of_many_bands", &[&[1201, 50]], |x| x[0].adaptive_avg_pool1d([7])),
    size("cumsum", "rows", &[&[3, 5001]], |x| x[0].cumsum(-1)),
    size("cumsum", "long_row", &[&[1, 40001]], |x| x[0].cumsum(-1)),
    size("cumsum", "columns", &[&[9, 4096]], |x| x[0].cumsum(0)),
    size("cumsum", "cut_columns", &[&[9001, 16]], |x| x[0].cumsum(0)),
    size("cumsum", "cut_columns_of_no_words", &[&[9001, 5]], |x| x[0].cumsum(0)),
    size("cumsum", "in_the_middle", &[&[3, 700, 10]], |x| x[0].cumsum(1)),
    size("cumsum", "columns_of_a_slice", &[&[700, 33]], |x| x[0].narrow(1, 3, 24)?.cumsum(0)),
    size("cumsum", "columns_of_rows", &[&[24, 700]], |x| x[0].t()?.cumsum(1)),
    // Factors of 1, -1 and 0, whose gradients reach x.
    size("prod", "cut_columns", &[&[9001, 5]], |x| x[0].detach().sign()?.add(&x[0].sub(&x[0].detach())?)?.prod(0)),
    size("sort", "merged", &[&[2, 5003]], |x| Ok(x[0].sort(-1, Order::Descending)?.0)),
    size("gather", "rows_that_meet", &[&[900, 7]], |x| x[0].gather(0, &indices(&x[0], &[900, 7], 11)?)),
    // Many picks from columns that are read in tiles, where multiprocessors are few.
    size("gather", "tiles_of_columns", &[&[90, 128]], |x| x[0].gather(0, &indices(&x[0], &[600, 128], 90)?)),
    size("gather", "tiles_of_planes", &[&[2, 90, 192]], |x| x[0].gather(1, &indices(&x[0], &[2, 200, 192], 90)?)),
    // Sums of f16 in local memory, of lists that lie side by side.
    size("scatter_add", "columns_that_meet", &[&[300, 27], &[2000, 27]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[2000, 27], 300)?, &x[1])
    }),
    size("scatter_add", "planes_that_meet", &[&[2, 70, 33], &[2, 900, 33]], |x| {
        x[0].scatter_add(1, &indices(&x[0], &[2, 900, 33], 70)?, &x[1])
    }),
    // Lists that are long, and many, where multiprocessors are few.
    size("scatter_add", "long_columns", &[&[700, 5], &[9001, 5]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[9001, 5], 700)?, &x[1])
    }),
    size("scatter_add", "long_columns_that_seldom_meet", &[&[20011, 3], &[12001, 3]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[12001, 3], 20011)?, &x[1])
    }),
    size("scatter", "long_rows", &[&[3, 9001], &[3, 9500]], |x| {
        x[0].scatter(1, &indices(&x[0], &[3, 9500], 9001)?, &x[1])
    }),
    // Buckets for which there is no room at once, too many entries of some of them, or of one place.
    size("scatter_add", "buckets_in_passes", &[&[40009, 9], &[32768, 9]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[32768, 9], 40009)?, &x[1])
    }),
    size("scatter_add", "buckets_that_are_full", &[&[90001, 2], &[30001, 2]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[30001, 2], 901)?, &x[1])
    }),
    size("scatter_add", "long_columns_of_one_place", &[&[9500, 3], &[9001, 3]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[9001, 3], 1)?, &x[1])
    }),
    size("scatter_add", "long_columns_of_few_places", &[&[9500, 3], &[9001, 3]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[9001, 3], 47)?, &x[1])
    }),
    size("scatter_add", "long_columns_half_of_one_place", &[&[9500, 3], &[9001, 3]], |x| {
        x[0].scatter_add(0, &skewed(&x[0], &[9001, 3], 9500)?, &x[1])
    }),
    size("scatter", "long_columns_half_of_one_place", &[&[9500, 3], &[9001, 3]], |x| {
        x[0].scatter(0, &skewed(&x[0], &[9001, 3], 9500)?, &x[1])
    }),
    size("scatter_add", "buckets_of_neighbours", &[&[9500, 9], &[9001, 9]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[9001, 9], 9500)?, &x[1])
    }),
    // Indices of which there are too many to be kept in 16 bits.
    size("scatter_add", "buckets_of_a_large_table", &[&[70001, 9], &[9001, 9]], |x| {
        x[0].scatter_add(0, &indices(&x[0], &[9001, 9], 70001)?, &x[1])
    }),
    size("scatter", "places_in_passes", &[&[40009, 9], &[32768, 9]], |x| {
        x[0].scatter(0, &indices(&x[0], &[32768, 9], 40009)?, &x[1])
    }),
    // An index for each element, which is the same along rows, or along a part of them.
    size("scatter_add", "alike_rows", &[&[700, 1024], &[300, 1024]], |x| {
        x[0].scatter_add(0, &alike(&indices(&x[0], &[300, 1], 700)?, &[300, 1024])?, &x[1])
    }),
    size("scatter_add", "alike_rows_of_few_places", &[&[700, 1024], &[300, 1024]], |x| {
        x[0].scatter_add(0, &alike(&indices(&x[0], &[300, 1], 5)?, &[300, 1024])?, &x[1])
    }),
    size("scatter_add", "partly_alike_rows", &[&[700, 1040], &[300, 1040]], |x| {
        let rows = alike(&indices(&x[0], &[300, 1], 700)?, &[300, 528])?;
        x[0].scatter_add(0, &Tensor::concat(&[&rows, &indices(&x[0], &[300, 512], 700)?], 1)?, &x[1])
    }),
    size("scatter", "alike_rows", &[&[700, 1024], &[300, 1024]], |x| {
        x[0].scatter(0, &alike(&indices(&x[0], &[300, 1], 700)?, &[300, 1024])?, &x[1])
    }),
    // Wide rows, of which each looks at the others: words that are no whole number of threads, and one place of hundreds.
    size("index_add", "wide_rows", &[&[90, 130], &[700, 130]], |x| {
        x[0].index_add(0, &indices(&x[0], &[700], 90)?, &x[1], 1)
    }),
    size("index_add", "wide_rows_that_meet", &[&[3, 2100], &[301, 2100]], |x| {
        x[0].index_add(0, &indices(&x[0], &[301], 3)?, &x[1], 1)
    }),
    size("scatter_add", "wide_rows_of_planes", &[&[2, 70, 64], &[2, 300, 64]], |x| {
        x[0].scatter_add(1, &indices(&x[0], &[2, 300, 1], 70)?.broadcast_to([2, 300, 64])?, &x[1])
    }),
    size("index_put", "assigned_wide_rows", &[&[400, 72], &[300, 72]], |x| {
        x[0].index_put(&[Index::Tensor(indices(&x[0], &[300], 400)?)], &x[1], Put::Assign)
    }),
    size("embedding", "rows_that_meet", &[&[50, 33]], |x| {
        x[0].embedding(&indices(&x[0], &[1500], 50)?, &EmbeddingOptions::default())
    }),
    size("embedding", "rows_that_meet_in_order", &[&[50, 5]], |x| {
        x[0].embedding(&indices(&x[0], &[9001], 50)?, &EmbeddingOptions::default())
    }),
    // Of a mask that is counted in parts.
    size("index", "mask", &[&[40001]], |x| x[0].index(&[Index::from(&x[0].gt_scalar(0.25)?)])),
    size("index", "mask_of_pairs", &[&[3, 6001, 2]], |x| {
        x[0].index(&[Index::from(&x[0].narrow(2, 1, 1)?.squeeze(2)?.lt_scalar(0.0)?)])
    }),
    size("index_put", "assigned", &[&[400, 3], &[300, 3]], |x| {
        x[0].index_put(&[Index::Tensor(indices(&x[0], &[300], 400)?)], &x[1], Put::Assign)
    }),
    size("index_put", "assigned_in_order", &[&[12001, 2], &[9001, 2]], |x| {
        x[0].index_put(&[Index::Tensor(indices(&x[0], &[9001], 12001)?)], &x[1], Put::Assign)
    }),
    size("cross_entropy", "rows", &[&[700, 33]], |x| x[0].cross_entropy(&indices(&x[0], &[700], 33)?)),
    size("cross_entropy", "many_rows", &[&[70001, 2]], |x| x[0].cross_entropy(&indices(&x[0], &[70001], 2)?)),
    size("cross_entropy", "long_rows", &[&[5, 9001]], |x| x[0].cross_entropy(&indices(&x[0], &[5], 9001)?)),
    size("cross_entropy", "columns", &[&[3, 11, 130]], |x| {
        let options = CrossEntropy { reduction: Reduction::Sum, ..Default::default() };
        x[0].cross_entropy_with(&indices(&x[0], &[3, 130], 11)?, &options)
    }),
    size("total", "norm", &[&[40001], &[3]], |x| total(Total::Norm, &[&x[0], &x[1]])),
];

/// Indices below `n` of which many are alike.
fn indices(like: &Tensor, shape: &[usize], n: i64) -> Result<Tensor> {
    let count = shape.iter().product::<usize>() as i64;
    Tensor::from_vec((0..count).map(|i| (i * i * 31 + i * 7) % n).collect::<Vec<_>>(), shape, like.device())
}

/// Every other one of these is alike.
fn skewed(like: &Tensor, shape: &[usize], n: i64) -> Result<Tensor> {
    let count = shape.iter().product::<usize>() as i64;
    let value = |i: i64| if i % 2 == 0 { n / 3 } else { (i * i * 31 + i * 7) % n };
    Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), shape, like.device())
}

/// An index with an element for each, all in memory.
fn alike(rows: &Tensor, shape: &[usize]) -> Result<Tensor> {
    rows.broadcast_to(shape)?.copy()
}

pub fn trials(device: &Device) -> Vec<Trial> {
    SIZES.iter().flat_map(|size| of(size, device)).collect()
}

fn of(size: &'static Size, device: &Device) -> Vec<Trial> {
    // Matrix units have an instruction for each dtype of 16 bits.
    let bf16 = ["matmul", "conv2d"].contains(&size.op).then_some(DType::BF16);
    let dtypes = [DType::F32, DType::F16].into_iter().chain(bf16);
    dtypes
        .map(|dtype| {
            let device = device.clone();
            trial(&device.clone(), size.op, &format!("{}::{dtype}", size.aspect), move || check(size, dtype, &device))
        })
        .collect()
}

/// Values in -1..1, no two of a row alike, that every dtype has.
fn input(shape: &[usize], seed: usize, dtype: DType) -> Result<Tensor> {
    let values = (0..shape.iter().product()).map(|i: usize| ((i * 7919 + seed * 31) % 16384) as f64 / 8192.0 - 1.0);
    Tensor::from_vec(values.collect::<Vec<_>>(), shape, &cpu())?.cast(dtype)
}

/// The result and the gradients of all inputs.
fn results(size: &Size, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let leaves: Vec<Tensor> = inputs.iter().map(Tensor::require_grad).collect::<Result<_>>()?;
    let y = (size.run)(&leaves)?;
    let mut all = vec![y.detach()];
    if y.requires_grad() {
        // Different for neighbours, and exact in every dtype.
        let values = (0..y.numel()).map(|i| ((i * 7919) % 13) as f64 / 8.0 - 0.75).collect::<Vec<_>>();
        let gradient = Some(Tensor::from_vec(values, y.shape(), y.device())?.cast(y.dtype())?);
        y.backward_with(&BackwardOptions { gradient, ..Default::default() })?;
        all.extend(leaves.iter().filter_map(Tensor::grad));
    }
    Ok(all)
}

fn check(size: &Size, dtype: DType, device: &Device) -> Result<(), String> {
    let inputs = size.shapes.iter().enumerate().map(|(i, shape)| input(shape, i, dtype)).collect::<Result<Vec<_>>>();
    let inputs = inputs.map_err(text)?;
    let on =
        |device: &Device, dtype| inputs.iter().map(|x| x.to_device(device)?.cast(dtype)).collect::<Result<Vec<_>>>();
    let got = on(device, dtype).and_then(|inputs| results(size, &inputs)).map_err(text)?;
    let exact = on(&cpu(), DType::F64).and_then(|inputs| results(size, &inputs)).map_err(text)?;
    for (k, (y, r)) in got.iter().zip(&exact).enumerate() {
        let r = r.to_f64_vec().map_err(text)?;
        // An element that is missed or taken twice, which is what these sizes are about, is off by about the typical
        // element; roundings of the sums, and of results that are kept in 16 bits, are far below a 64th of the largest.
        let largest = r.iter().map(|v| v.abs()).fold(1e-3, f64::max);
        let relative = if dtype == DType::F32 { 2f64.powi(-16) } else { 2f64.powi(-8) };
        let what = if k == 0 { "the result".to_string() } else { format!("gradient {}", k - 1) };
        close_values(&what, &y.to_f64_vec().map_err(text)?, &r, |_| relative * largest)
            .map_err(|e| e.why.chars().take(500).collect::<String>())?;
    }
    Ok(())
}
