//! Files that are no models, or that would do harm.

use crate::build::*;
use crate::proto::*;
use isograd_core::{Error, Kind, Result};
use isograd_onnx::{OnnxModel, load};
use prost::Message;
use std::fs;
use std::path::Path;
use std::slice::from_ref;

fn refusal(message: &ModelProto) -> Error {
    loaded(message).expect_err("the model is refused")
}

fn of_nodes(nodes: &[NodeProto]) -> ModelProto {
    model(13, graph("a", "y", nodes, &[]))
}

#[test]
fn all_operators_without_a_counterpart_are_listed() {
    let nodes = [
        node("StringNormalizer", "a", "t", &[]),
        node("Exp", "t", "u", &[]),
        of_domain("own", node("Magic", "u", "y", &[])),
    ];
    let error = refusal(&of_nodes(&nodes));
    assert_eq!(error.kind(), Kind::Unsupported);
    let message = error.message();
    assert!(message.contains("StringNormalizer of the domain ai.onnx, opset 13"), "{message}");
    assert!(message.contains("Magic of the domain own, opset none") && !message.contains("Exp"), "{message}");
}

#[test]
fn graphs_that_cannot_run_are_refused() {
    let cycle = [node("Add", "a z", "y", &[]), node("Exp", "y", "z", &[])];
    let twice = [node("Exp", "a", "y", &[]), node("Sin", "a", "y", &[])];
    for (nodes, expected) in [
        (&cycle[..], "form a cycle"),
        (&[node("Add", "a nothing", "y", &[])], "reads \"nothing\", which nothing computes"),
        (&[node("Exp", "a", "z", &[])], "an output reads \"y\""),
        (&twice, "two nodes compute \"y\""),
        (&[node("Exp", "y", "y", &[])], "form a cycle"),
    ] {
        let error = refusal(&of_nodes(nodes));
        assert_eq!(error.kind(), Kind::Format);
        assert!(error.message().contains(expected), "{error}");
    }
    let error = refusal(&model(3, graph("a", "y", &[node("Exp", "a", "y", &[])], &[])));
    assert!(error.message().contains("opset 3, of which 7 to 28 are read"), "{error}");
}

#[test]
fn nodes_in_another_order_run() -> Result<()> {
    let nodes = [node("Exp", "t", "y", &[]), node("Neg", "a", "t", &[])];
    let y = run(13, graph("a", "y", &nodes, &[]), &[vector(&[0.0])])?;
    assert_eq!(y.to_vec::<f32>()?, [1.0]);
    Ok(())
}

#[test]
fn tensors_that_do_not_fit_their_bytes_are_refused() {
    let of = |tensor: TensorProto| {
        let error = refusal(&model(13, graph("a", "y", &[node("Add", "a w", "y", &[])], &[tensor])));
        assert_eq!(error.kind(), Kind::Format, "{error}");
        error.message().to_string()
    };
    let whole = tensor("w", &[1.0f32, 2.0], &[2]);
    let with = |dims: &[i64]| TensorProto { dims: dims.to_vec(), ..whole.clone() };
    for (tensor, expected) in [
        (with(&[3]), "has 8 bytes, expected 12"),
        (with(&[1 << 50]), "has 8 bytes, expected"),
        (with(&[i64::MAX, i64::MAX]), "which overflow"),
        (with(&[-1]), "expected none below 0"),
        (with(&[1; 9]), "9 dimensions, expected at most 8"),
        (TensorProto { data_type: Some(99), ..whole.clone() }, "the type 99 (unknown)"),
        (TensorProto { data_type: Some(8), ..whole.clone() }, "the type 8 (string)"),
        (TensorProto { raw_data: None, float_data: vec![1.0], ..whole.clone() }, "has 4 bytes, expected 8"),
    ] {
        let message = of(tensor);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_sparse_tensor_does_not_fill_the_memory() {
    let sparse = SparseTensorProto {
        values: Some(tensor("w", &[1.0f32], &[1])),
        indices: Some(tensor("", &[0i64], &[1])),
        dims: vec![1 << 40],
    };
    let mut message = graph("a", "y", &[node("Add", "a w", "y", &[])], &[]);
    message.sparse_initializer.push(sparse);
    let error = refusal(&model(13, message));
    assert!(error.message().contains("its content would take more than"), "{error}");
}

/// Bodies within bodies, deeper than a stack should go.
#[test]
fn graphs_in_graphs_are_limited() {
    let mut inner = graph("", "y", &[node("Identity", "a", "y", &[])], &[]);
    for _ in 0..200 {
        inner = graph("", "y", &[node("If", "a", "y", &[body("then_branch", inner)])], &[]);
    }
    assert_eq!(refusal(&model(13, inner)).kind(), Kind::Format);
}

/// Functions that call the next one twice: more nodes than memory.
#[test]
fn functions_of_functions_are_limited() {
    let function = |k: usize| FunctionProto {
        name: Some(format!("f{k}")),
        domain: Some("own".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: if k == 0 {
            vec![node("Exp", "x", "y", &[])]
        } else {
            let next = |from: &str, to: &str| of_domain("own", node(&format!("f{}", k - 1), from, to, &[]));
            vec![next("x", "t"), next("t", "y")]
        },
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(13) }],
        ..Default::default()
    };
    let nodes = [of_domain("own", node("f40", "a", "y", &[]))];
    let error = refusal(&ModelProto { functions: (0..=40).map(function).collect(), ..of_nodes(&nodes) });
    assert!(error.message().contains("its content would take more than"), "{error}");
}

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// A model whose weight is in another file, saved in a folder.
fn external(folder: &Path, location: &str, more: &[StringStringEntryProto]) -> Result<OnnxModel> {
    let weight = TensorProto {
        raw_data: None,
        data_location: Some(1),
        external_data: [&[entry("location", location)], more].concat(),
        ..tensor("w", &[0.0f32; 2], &[2])
    };
    let message = model(13, graph("a", "y", &[node("Add", "a w", "y", &[])], &[weight]));
    let path = folder.join("model.onnx");
    fs::write(&path, message.encode_to_vec()).unwrap();
    load(path, &cpu())
}

#[test]
fn elements_in_other_files_are_read_from_the_folder_alone() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("models");
    fs::create_dir_all(folder.join("weights")).unwrap();
    let bytes: Vec<u8> = [0.0f32, 1.5, 2.5].iter().flat_map(|v| v.to_ne_bytes()).collect();
    for path in [root.path().join("outside.bin"), folder.join("w.bin"), folder.join("weights/w.bin")] {
        fs::write(path, &bytes).unwrap();
    }
    let at = [entry("offset", "4"), entry("length", "8")];
    for location in ["w.bin", "weights/w.bin", "./w.bin"] {
        let y = external(&folder, location, &at)?.forward(&[vector(&[0.0, 0.0])])?.remove(0);
        assert_eq!(y.to_vec::<f32>()?, [1.5, 2.5]);
    }
    let absolute = root.path().join("outside.bin").display().to_string();
    let mut refused = vec![
        (absolute, at.to_vec(), "outside of the model's folder"),
        ("../outside.bin".into(), at.to_vec(), "outside of the model's folder"),
        ("weights/../../outside.bin".into(), at.to_vec(), "outside of the model's folder"),
        ("".into(), at.to_vec(), "outside of the model's folder"),
        ("missing.bin".into(), at.to_vec(), "is in \"missing.bin\""),
        ("w.bin".into(), vec![entry("offset", "8")], "ends after the 12 bytes"),
        ("w.bin".into(), vec![entry("offset", "18446744073709551615")], "ends after the 12 bytes"),
        ("w.bin".into(), vec![entry("length", "4")], "has 4 bytes in \"w.bin\", expected 8"),
        ("w.bin".into(), vec![entry("offset", "-1")], "has the offset \"-1\""),
    ];
    if cfg!(unix) {
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.path().join("outside.bin"), folder.join("link.bin")).unwrap();
        refused.push(("link.bin".into(), at.to_vec(), "outside of the model's folder"));
    }
    for (location, more, expected) in refused {
        let error = external(&folder, &location, &more).unwrap_err();
        assert_eq!(error.kind(), Kind::Format);
        assert!(error.message().contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn other_files_are_no_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for bytes in [&b"GGUF\x03\0\0\0"[..], b"", b"\x08\x08", b"{}", &[0xff; 64]] {
        fs::write(&path, bytes).unwrap();
        let error = load(&path, &cpu()).unwrap_err();
        assert_eq!(error.kind(), Kind::Format);
        assert!(error.message().contains("it is no model of ONNX") && error.op().contains("model.onnx"), "{error}");
    }
    assert_eq!(load(folder.path().join("missing.onnx"), &cpu()).unwrap_err().kind(), Kind::Io);
}

/// Each file that misses its end, or has another byte, is refused or is a model; none panics.
#[test]
fn changed_and_cut_files_do_not_panic() {
    let inner = graph("", "o", &[node("Neg", "a", "o", &[])], &[]);
    let nodes = [
        node("MatMul", "a w", "h", &[]),
        node("Shape", "h", "s", &[]),
        node("Reshape", "h s", "r", &[]),
        node("ReduceSum", "r axes", "t", &[int("keepdims", 0)]),
        node("Greater", "t zero", "c", &[]),
        node("If", "c", "y", &[body("then_branch", inner.clone()), body("else_branch", inner)]),
    ];
    let tensors = [
        tensor("w", &[1.0f32, 2.0, 3.0, 4.0], &[2, 2]),
        tensor("axes", &[0i64, 1], &[2]),
        tensor("zero", &[0.0f32], &[]),
    ];
    let whole = model(13, graph("a", "y", &nodes, &tensors)).encode_to_vec();
    let x = matrix(&[1.0, 2.0], [1, 2]);
    assert!(OnnxModel::from_bytes(&whole, &cpu()).unwrap().forward(from_ref(&x)).is_ok());
    let mut refused = 0;
    let mut check = |bytes: &[u8]| match OnnxModel::from_bytes(bytes, &cpu()) {
        // Changed numbers of a graph are errors of its nodes.
        Ok(model) => drop(model.forward(from_ref(&x))),
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Format | Kind::Unsupported), "{error}");
            refused += 1;
        }
    };
    (0..whole.len()).for_each(|end| check(&whole[..end]));
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at].wrapping_add(1)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            check(&bytes);
        }
    }
    assert!(refused > whole.len(), "{refused}");
}

/// Numbers of a graph that ask for more than memory are errors of its nodes.
#[test]
fn absurd_numbers_are_refused() {
    let i64s = |name: &str, v: &[i64]| tensor(name, v, &[v.len() as i64]);
    let (huge, one) = (1i64 << 60, matrix(&[1.0, 2.0], [1, 2]));
    let cases = [
        (node("Resize", "a _ s", "y", &[]), vec![tensor("s", &[1.0f32, 1e15], &[2])]),
        (node("Resize", "a _ s", "y", &[mode("linear")]), vec![tensor("s", &[1.0f32, 1e8], &[2])]),
        (node("Pad", "a p", "y", &[mode("reflect")]), vec![i64s("p", &[0, huge, 0, huge])]),
        (node("Pad", "a p", "y", &[]), vec![i64s("p", &[0, huge, 0, huge])]),
        (node("Split", "a", "y", &[int("axis", 1), int("num_outputs", huge)]), vec![]),
        (node("Tile", "a n", "y", &[]), vec![i64s("n", &[huge, huge])]),
        (node("Expand", "a n", "y", &[]), vec![i64s("n", &[huge, huge, 1, 2])]),
        (node("Reshape", "a n", "y", &[]), vec![i64s("n", &[huge, huge, -1])]),
        (node("OneHot", "a n v", "y", &[]), vec![i64s("n", &[huge]), tensor("v", &[0.0f32, 1.0], &[2])]),
        (node("ConstantOfShape", "n", "y", &[]), vec![i64s("n", &[huge])]),
        (
            node("Range", "z n o", "y", &[]),
            vec![tensor("z", &[0i64], &[]), tensor("n", &[huge], &[]), tensor("o", &[1i64], &[])],
        ),
        (node("CenterCropPad", "a n", "y", &[]), vec![i64s("n", &[huge, huge])]),
        (node("HannWindow", "n", "y", &[]), vec![tensor("n", &[huge], &[])]),
        (node("Unsqueeze", "a n", "y", &[]), vec![i64s("n", &[0, 1, 2, 3, 4, 5, 6, 7])]),
    ];
    for (node, tensors) in cases {
        let op = node.op_type.clone().unwrap();
        let found = run_node(18, node, &tensors, from_ref(&one));
        assert!(found.is_err(), "{op} is not refused");
    }
}

fn mode(chosen: &str) -> AttributeProto {
    AttributeProto {
        name: Some("mode".into()),
        s: Some(chosen.into()),
        r#type: Some(attribute_type::STRING),
        ..Default::default()
    }
}
