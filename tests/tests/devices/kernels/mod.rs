//! Kernels at the sizes, layouts and methods where they change their ways: reductions, products, sorts, scatters, draws, fused
//! rows and launches over many tensors. They run on GPUs and are compared with the CPU, whose own kernels are tested in its crate.

#[path = "../../../../crates/cpu/tests/common/mod.rs"]
mod common;
mod device;
mod index;
mod matmul;
mod multi_tensor;
mod random;
mod reduce;
mod rows;
mod segment;
mod sort;

use isograd::Device;
use isograd_tests::harness;
use libtest_mimic::Trial;
use std::sync::Arc;

/// Trials of the functions of a module, with what they run on.
macro_rules! trials {
    ($device:ident, $on:ident, $module:ident: $($name:ident)*) => {
        vec![$({
            let on = $on.clone();
            harness::trial($device, stringify!($module), stringify!($name), move || ended($module::$name(&on)))
        }),*]
    };
}

pub fn trials(device: &Device) -> Vec<Trial> {
    device::open(device).map_or(Vec::new(), |gpu| of(device, &Arc::new(gpu)))
}

/// How a function ended that panics if something is wrong.
fn ended(result: impl Into<Ended>) -> Result<(), String> {
    result.into().0
}

struct Ended(Result<(), String>);

impl From<()> for Ended {
    fn from((): ()) -> Ended {
        Ended(Ok(()))
    }
}

impl From<isograd::Result<()>> for Ended {
    fn from(result: isograd::Result<()>) -> Ended {
        Ended(result.map_err(harness::text))
    }
}

fn of(device: &Device, gpu: &Arc<isograd_gpu::Gpu>) -> Vec<Trial> {
    [
        trials!(device, gpu, index:
            sizes_of_rows sizes_of_indices dtypes views expanded_indices rows_at_offsets long_and_short_sums
            integers_wrap_and_sums_round_once nan_and_zeros_move_as_they_are lists_of_all_lengths many_lists
            large_tables two_runs_give_the_same_bits),
        trials!(device, device, index:
            checked_errors_are_those_of_the_cpu deferred_errors_come_with_the_next_wait bad_indices_touch_nothing
            the_kernels_that_run),
        trials!(device, gpu, matmul:
            sizes tiles_of_every_kind few_results_of_many_parts vectors_of_every_kind few_products_of_every_kind choices_for_a_large_device
            positions_of_64_bits operands_without_a_factor_are_not_read infinities_and_zeros_are_multiplied
            two_runs_give_the_same_bits activations_of_every_method activations_of_nothing_multiplied
            gradients_of_activations_of_every_method what_relu_cut_off_gets_nothing),
        trials!(device, gpu, random: states_and_ranges an_output_that_is_not_aligned),
        trials!(device, gpu, reduce:
            sizes_of_sums sizes_of_positions sizes_of_others dtypes_of_floats dtypes_of_integers views_of_sums
            views_of_positions many_long_columns_and_rows_take_several_launches nan_infinities_and_ties integers_wrap
            sizes_of_scans dtypes_of_scans views_of_scans columns_of_scans dtypes_of_columns_of_scans
            running_products_do_not_overflow_between special_values_in_scans),
        trials!(device, gpu, sort: sizes dtypes views ties_keep_their_order sorted_and_reversed),
        trials!(device, device, multi_tensor:
            one_launch_has_the_bits_of_many three_hundred_tensors_of_several_dtypes nothing_around_a_view_is_written
            sets_that_overlap_are_updated_in_turn one_bad_set_changes_none
            strided_and_broadcast_sets_run_beside_the_others norms_of_each_are_those_of_the_cpu
            each_set_has_numbers_of_its_own totals_are_those_of_the_cpu bad_numbers_are_found_wherever_they_are
            gradients_are_unscaled_and_checked_at_once two_threads_update_at_once),
        trials!(device, device, rows:
            softmax_of_rows norms_of_rows cross_entropy_of_rows_and_columns cross_entropy_with_all_options
            cross_entropy_of_many_elements_and_special_ones cross_entropy_of_a_view
            a_class_out_of_range_is_an_error_with_its_place gradients_of_tables rows_without_tokens),
        trials!(device, device, segment: all_sizes_and_dtypes softmax_of_edges),
    ]
    .into_iter()
    .flatten()
    .collect()
}
