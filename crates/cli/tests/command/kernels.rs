//! `isograd kernels`.

use crate::refusing::assert_refused;
use crate::run;

fn printed(arguments: &[&str]) -> String {
    let ended = run(&[&["kernels"], arguments].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

#[test]
fn files_and_rows_are_listed() {
    let list = printed(&[]);
    let line = |start: &str| list.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{list}"));
    assert!(line("normalization/softmax.c ").ends_with(" softmax_rows softmax_rows_backward"));
    assert_eq!(line("gelu ").split_whitespace().collect::<Vec<_>>(), ["gelu", "1", "0", "1", "floats"]);
    assert!(line("adam_step ").ends_with("floats, in place"));
    assert!(list.lines().any(|line| line == "cast"));
}

#[test]
fn a_source_is_what_the_compiler_receives() {
    let source = printed(&["softmax_rows", "--dialect", "opencl", "--dtype", "bf16"]);
    assert!(source.starts_with("#define T bf16\n"), "{source}");
    assert!(source.contains("\nKERNEL(softmax_rows)("), "{source}");
    let gelu = printed(&["gelu"]);
    assert!(gelu.contains("#define ROW gelu\n") && gelu.contains("KERNEL(elementwise)("), "{gelu}");
    assert!(printed(&["gelu", "--dtype", "f64"]).contains("#define NEEDS_F64 1\n"));
    // A row and an entry of a file have the same name.
    assert!(printed(&["normalization/norm_backward.c/norm_backward"]).contains("KERNEL(norm_backward)("));
    assert!(printed(&["elementwise/norm_backward"]).contains("#define ROW norm_backward\n"));
}

#[test]
fn what_is_not_there_is_said() {
    let refused =
        |arguments: &[&str], expected: &[&str]| assert_refused(&run(&[&["kernels"], arguments].concat()), expected);
    refused(&["softmax_row"], &["there is no kernel \"softmax_row\"; near it are softmax_rows, softmax_rows_backward"]);
    refused(&["gelo"], &["near it are gelu"]);
    refused(&["xyzzy"], &["there is no kernel \"xyzzy\"; `isograd kernels` lists all"]);
    refused(
        &["norm_backward"],
        &["several kernels: normalization/norm_backward.c/norm_backward, elementwise/norm_backward"],
    );
    refused(&["gelu", "--dtype", "i64"], &["gelu does not run on i64"]);
    refused(
        &["gelu", "--dialect", "metal"],
        &["there is no dialect \"metal\"; this program was built with: cuda, hip, opencl"],
    );
    let ended = run(&["kernels", "gelu", "--dtype", "f8"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("no dtype is called \"f8\""), "{}", ended.stderr);
}
