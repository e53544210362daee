//! Operators of several opsets, shapes on the host, bodies, functions, types of elements.

use crate::build::*;
use crate::proto::*;
use isograd_core::tape::trace;
use isograd_core::{Result, Tensor};
use std::slice::from_ref;

fn numbers(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn attributes_that_became_inputs_are_read_in_both_places() -> Result<()> {
    let x = matrix(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
    let i64s = |name: &str, v: &[i64]| tensor(name, v, &[v.len() as i64]);
    let pairs = [
        (
            run_node(12, node("Unsqueeze", "a", "y", &[ints("axes", &[0, 3])]), &[], from_ref(&x))?,
            run_node(13, node("Unsqueeze", "a axes", "y", &[]), &[i64s("axes", &[0, 3])], from_ref(&x))?,
        ),
        (
            run_node(12, node("ReduceSum", "a", "y", &[ints("axes", &[1])]), &[], from_ref(&x))?,
            run_node(13, node("ReduceSum", "a axes", "y", &[]), &[i64s("axes", &[1])], from_ref(&x))?,
        ),
        (
            run_node(
                9,
                node("Slice", "a", "y", &[ints("starts", &[1]), ints("ends", &[9]), ints("axes", &[1])]),
                &[],
                from_ref(&x),
            )?,
            run_node(
                10,
                node("Slice", "a s e axes", "y", &[]),
                &[i64s("s", &[1]), i64s("e", &[9]), i64s("axes", &[1])],
                from_ref(&x),
            )?,
        ),
        (
            run_node(10, node("Clip", "a", "y", &[float("min", 2.0), float("max", 5.0)]), &[], from_ref(&x))?,
            run_node(
                11,
                node("Clip", "a low high", "y", &[]),
                &[tensor("low", &[2.0f32], &[]), tensor("high", &[5.0f32], &[])],
                from_ref(&x),
            )?,
        ),
        (
            run_node(
                10,
                node("Pad", "a", "y", &[ints("pads", &[0, 1, 1, 0]), float("value", 7.0)]),
                &[],
                from_ref(&x),
            )?,
            run_node(
                11,
                node("Pad", "a pads v", "y", &[]),
                &[i64s("pads", &[0, 1, 1, 0]), tensor("v", &[7.0f32], &[])],
                from_ref(&x),
            )?,
        ),
        (
            run_node(11, node("Split", "a", "y z", &[int("axis", 1), ints("split", &[1, 2])]), &[], from_ref(&x))?,
            run_node(13, node("Split", "a s", "y z", &[int("axis", 1)]), &[i64s("s", &[1, 2])], from_ref(&x))?,
        ),
        (
            run_node(9, node("Upsample", "a s", "y", &[]), &[tensor("s", &[2.0f32, 1.0], &[2])], from_ref(&x))?,
            run_node(7, node("Upsample", "a", "y", &[floats("scales", &[2.0, 1.0])]), &[], from_ref(&x))?,
        ),
    ];
    for (before, after) in pairs {
        assert_eq!((before.dims(), numbers(&before)), (after.dims(), numbers(&after)));
        assert_ne!((before.dims(), numbers(&before)), (x.dims(), numbers(&x)));
    }
    Ok(())
}

#[test]
fn softmax_is_over_all_later_dimensions_before_opset_13() -> Result<()> {
    let x = Tensor::from_vec((0..8).map(|v| v as f32).collect(), (2, 2, 2), &cpu())?;
    let old = run_node(12, node("Softmax", "a", "y", &[]), &[], from_ref(&x))?;
    let new = run_node(13, node("Softmax", "a", "y", &[]), &[], &[x])?;
    assert!(old.sum([1, 2])?.allclose(&vector(&[1.0, 1.0]), 1e-6, 0.0)?);
    assert!(new.sum(2)?.allclose(&Tensor::ones((2, 2), isograd_core::DType::F32, &cpu())?, 1e-6, 0.0)?);
    Ok(())
}

/// Shapes are known on the host: nothing is read back, which a captured step refuses.
#[test]
fn shapes_are_computed_in_a_captured_step() -> Result<()> {
    let nodes = [
        node("Shape", "a", "s", &[]),
        node("Gather", "s zero", "n", &[]),
        node("Mul", "n two", "m", &[]),
        node("Unsqueeze", "m axes", "u", &[]),
        node("Concat", "u rest", "to", &[int("axis", 0)]),
        node("Reshape", "a to", "r", &[]),
        node("Cast", "s", "f", &[int("to", 1)]),
        node("Div", "f half", "g", &[]),
        node("Floor", "g", "h", &[]),
        node("Cast", "h", "sizes", &[int("to", 7)]),
        node("Resize", "b _ _ sizes", "z", &[]),
        node("ReduceSum", "z", "t", &[int("keepdims", 0)]),
        node("Add", "r t", "y", &[]),
    ];
    let tensors = [
        tensor("zero", &[0i64], &[]),
        tensor("two", &[2i64], &[]),
        tensor("axes", &[0i64], &[1]),
        tensor("rest", &[-1i64], &[1]),
        tensor("half", &[0.5f32], &[1]),
    ];
    // `half` is a parameter of its own; its quotient is of shapes, so that it is a constant here.
    let mut tensors = tensors.to_vec();
    tensors[4].doc_string = Some("constant".into());
    let model = loaded(&model(13, graph("a b", "y", &nodes, &tensors)))?;
    let (a, b) = (matrix(&[1.0; 12], [3, 4]), matrix(&[1.0; 12], [3, 4]));
    let mut step = cpu().capture(|(a, b): (Tensor, Tensor)| Ok(model.forward(&[a, b])?.remove(0)));
    for _ in 0..3 {
        let y = step.run((a.clone(), b.clone()))?;
        assert_eq!((y.dims(), numbers(&y)), (&[6, 2][..], vec![49.0; 12]));
    }
    Ok(())
}

#[test]
fn results_of_constants_are_computed_once() -> Result<()> {
    let big: Vec<f32> = (0..2000).map(|v| v as f32).collect();
    let nodes = [
        node("Constant", "", "k", &[constant("value", tensor("k", &big, &[2000]))]),
        node("Exp", "k", "e", &[]),
        node("Sin", "e", "s", &[]),
        node("Add", "a s", "y", &[]),
    ];
    let model = loaded(&model(13, graph("a", "y", &nodes, &[])))?;
    let x = vector(&vec![1.0; 2000]);
    let steps = |result: (Result<Vec<Tensor>>, Vec<isograd_core::tape::Step>)| result.1.len();
    let (first, second) = (steps(trace(|| model.forward(from_ref(&x)))), steps(trace(|| model.forward(from_ref(&x)))));
    assert!(second < first, "{second} of {first}");
    Ok(())
}

#[test]
fn a_branch_reads_values_around_it() -> Result<()> {
    let branch = |op: &str| graph("", "o", &[node(op, "a b", "o", &[])], &[]);
    let nodes = [
        node("ReduceSum", "a", "s", &[int("keepdims", 0)]),
        node("Greater", "s zero", "c", &[]),
        node("If", "c", "y", &[body("then_branch", branch("Add")), body("else_branch", branch("Sub"))]),
    ];
    let of = |a: &[f32]| {
        let zero = [tensor("zero", &[0.0f32], &[])];
        run(13, graph("a b", "y", &nodes, &zero), &[vector(a), vector(&[1.0, 2.0])])
    };
    assert_eq!(numbers(&of(&[3.0, 4.0])?), [4.0, 6.0]);
    assert_eq!(numbers(&of(&[-3.0, -4.0])?), [-4.0, -6.0]);
    Ok(())
}

/// x to the power 4 by products, and the products themselves. The gradient flows through all runs of the body.
#[test]
fn gradients_flow_through_a_loop() -> Result<()> {
    let mut inner = graph("i c p", "c q q", &[node("Mul", "p a", "q", &[])], &[]);
    inner.input[0] = port("i", 7);
    inner.input[1] = port("c", 9);
    let nodes = [node("Loop", "n _ a", "y all", &[body("body", inner)])];
    let model = loaded(&model(13, graph("a", "y all", &nodes, &[tensor("n", &[3i64], &[])])))?;
    let x = vector(&[2.0, -3.0]).require_grad()?;
    let outputs = model.forward(from_ref(&x))?;
    assert_eq!(numbers(&outputs[0]), [16.0, 81.0]);
    assert_eq!((outputs[1].dims(), numbers(&outputs[1])), (&[3, 2][..], vec![4.0, 9.0, 8.0, -27.0, 16.0, 81.0]));
    outputs[0].sum(..)?.backward()?;
    assert_eq!(numbers(&x.grad().unwrap()), [32.0, -108.0]);
    Ok(())
}

#[test]
fn a_scan_sums_rows() -> Result<()> {
    let inner = graph("s x", "t u", &[node("Add", "s x", "t", &[]), node("Identity", "t", "u", &[])], &[]);
    let nodes = [node("Scan", "b a", "y z", &[body("body", inner), int("num_scan_inputs", 1)])];
    let model = loaded(&model(13, graph("a b", "y z", &nodes, &[])))?;
    let found = model.forward(&[matrix(&[1.0, 2.0, 3.0, 4.0], [2, 2]), vector(&[10.0, 20.0])])?;
    assert_eq!(numbers(&found[0]), [14.0, 26.0]);
    assert_eq!(numbers(&found[1]), [11.0, 22.0, 14.0, 26.0]);
    Ok(())
}

/// A function with an attribute of its call, and one with a default.
fn scaled() -> FunctionProto {
    let refers = AttributeProto { ref_attr_name: Some("slope".into()), ..float("alpha", 0.0) };
    FunctionProto {
        name: Some("Scaled".into()),
        domain: Some("own".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: vec![node("LeakyRelu", "x", "t", &[refers]), node("Add", "t t", "y", &[])],
        attribute_proto: vec![float("slope", 0.5)],
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(13) }],
        ..Default::default()
    }
}

#[test]
fn functions_are_their_nodes() -> Result<()> {
    let nodes = [
        of_domain("own", node("Scaled", "a", "t", &[])),
        of_domain("own", node("Scaled", "t", "y", &[float("slope", 0.25)])),
    ];
    let message = ModelProto { functions: vec![scaled()], ..model(13, graph("a", "y", &nodes, &[])) };
    let y = loaded(&message)?.forward(&[vector(&[1.0, -1.0])])?.remove(0);
    assert_eq!(numbers(&y), [4.0, -0.5]);
    let mut endless = scaled();
    endless.node.push(of_domain("own", node("Scaled", "y", "z", &[])));
    let error = loaded(&ModelProto { functions: vec![endless], ..message }).unwrap_err();
    assert!(error.message().contains("calls itself"), "{error}");
    Ok(())
}

#[test]
fn elements_of_every_kind_are_read() -> Result<()> {
    let of = |data_type: i32, fill: TensorProto| -> Result<Vec<f64>> {
        let value = TensorProto { data_type: Some(data_type), dims: vec![2], ..fill };
        let nodes = [node("Constant", "", "k", &[constant("value", value)]), node("Cast", "k", "y", &[int("to", 1)])];
        loaded(&model(21, graph("", "y", &nodes, &[])))?.forward(&[])?[0].to_f64_vec()
    };
    let low = |v: [i32; 2]| TensorProto { int32_data: v.to_vec(), ..Default::default() };
    let raw = |v: &[u8]| TensorProto { raw_data: Some(v.to_vec().into()), ..Default::default() };
    assert_eq!(of(1, TensorProto { float_data: vec![1.5, -2.0], ..Default::default() })?, [1.5, -2.0]);
    assert_eq!(of(11, TensorProto { double_data: vec![1.5, -2.0], ..Default::default() })?, [1.5, -2.0]);
    assert_eq!(of(7, TensorProto { int64_data: vec![3, -4], ..Default::default() })?, [3.0, -4.0]);
    assert_eq!(of(13, TensorProto { uint64_data: vec![3, 4], ..Default::default() })?, [3.0, 4.0]);
    assert_eq!(of(10, low([0x3c00, 0xc000]))?, [1.0, -2.0]);
    assert_eq!(of(16, low([0x3f80, 0xc000]))?, [1.0, -2.0]);
    assert_eq!(of(3, low([-1, 127]))?, [-1.0, 127.0]);
    assert_eq!(of(5, low([-300, 300]))?, [-300.0, 300.0]);
    assert_eq!(of(9, low([1, 0]))?, [1.0, 0.0]);
    assert_eq!(of(3, raw(&[0xff, 0x7f]))?, [-1.0, 127.0]);
    assert_eq!(of(22, raw(&[0xf1]))?, [1.0, -1.0]);
    assert_eq!(of(21, raw(&[0xf1]))?, [1.0, 15.0]);
    assert_eq!(of(17, raw(&[0x38, 0xb8]))?, [1.0, -1.0]);
    Ok(())
}

#[test]
fn sparse_tensors_are_dense() -> Result<()> {
    let sparse = SparseTensorProto {
        values: Some(tensor("w", &[5.0f32, 7.0], &[2])),
        indices: Some(tensor("", &[0i64, 1, 1, 0], &[2, 2])),
        dims: vec![2, 2],
    };
    let mut message = graph("a", "y", &[node("Add", "a w", "y", &[])], &[]);
    message.sparse_initializer.push(sparse);
    let y = run(13, message, &[matrix(&[0.0; 4], [2, 2])])?;
    assert_eq!(numbers(&y), [0.0, 5.0, 7.0, 0.0]);
    Ok(())
}

#[test]
fn small_integers_wrap() -> Result<()> {
    let value = |v: i32| TensorProto { data_type: Some(3), int32_data: vec![v], dims: vec![1], ..Default::default() };
    let nodes = [
        node("Constant", "", "k", &[constant("value", value(127))]),
        node("Constant", "", "one", &[constant("value", value(1))]),
        node("Add", "k one", "s", &[]),
        node("Cast", "s", "f", &[int("to", 1)]),
        node("Add", "f a", "y", &[]),
    ];
    assert_eq!(numbers(&run(14, graph("a", "y", &nodes, &[]), &[vector(&[0.0])])?), [-128.0]);
    // The same on the device.
    let mut on_device =
        graph("a b", "y", &[node("Add", "a b", "s", &[]), node("Cast", "s", "y", &[int("to", 1)])], &[]);
    on_device.input.iter_mut().for_each(|input| *input = port(&input.name.clone().unwrap(), 3));
    let of = |v: i32| Tensor::from_vec(vec![v], 1, &cpu()).unwrap();
    assert_eq!(numbers(&run(14, on_device, &[of(127), of(1)])?), [-128.0]);
    Ok(())
}

#[test]
fn fused_operators_of_onnxruntime_are_their_parts() -> Result<()> {
    let x = matrix(&[1.0, -2.0, 0.5, 3.0], [2, 2]);
    let of = |node: NodeProto, tensors: &[TensorProto]| {
        run_node(17, of_domain("com.microsoft", node), tensors, from_ref(&x))
    };
    let bias = [tensor("w", &[0.5f32, 1.0], &[2])];
    let b = vector(&[0.5, 1.0]);
    let gelu = of(node("BiasGelu", "a w", "y", &[]), &bias)?;
    assert!(gelu.allclose(&x.add(&b)?.gelu(isograd_core::ops::Approximate::None)?, 1e-6, 1e-6)?);
    let product = of(node("FusedMatMul", "a a", "y", &[int("transB", 1), float("alpha", 0.5)]), &[])?;
    assert!(product.allclose(&x.matmul(&x.t()?)?.mul_scalar(0.5)?, 1e-6, 1e-6)?);
    let norm = of(node("SkipLayerNormalization", "a a w w", "y", &[float("epsilon", 1e-5)]), &bias)?;
    assert!(norm.allclose(&x.add(&x)?.layer_norm(1, Some(&b), Some(&b), 1e-5)?, 1e-6, 1e-6)?);
    Ok(())
}

#[test]
fn linear_models_and_scalers_of_samples() -> Result<()> {
    let x = matrix(&[1.0, 2.0, -3.0, 4.0], [2, 2]);
    let of = |op: &str, attributes: &[AttributeProto]| {
        let outputs = if op == "LinearClassifier" { "y scores" } else { "y" };
        run_node(17, of_domain("ai.onnx.ml", node(op, "a", outputs, attributes)), &[], from_ref(&x))
    };
    let weights = [floats("coefficients", &[1.0, 0.0, 0.5, -1.0]), floats("intercepts", &[10.0, 20.0])];
    let regressed = of("LinearRegressor", &[&weights[..], &[int("targets", 2)]].concat())?;
    assert_eq!((regressed.dims(), numbers(&regressed)), (&[2, 2][..], vec![11.0, 18.5, 7.0, 14.5]));
    let labels = of("LinearClassifier", &[&weights[..], &[ints("classlabels_ints", &[7, 5])]].concat())?;
    assert_eq!(labels.to_vec::<i64>()?, [5, 5]);
    let scaled = of("Scaler", &[floats("offset", &[1.0, 2.0]), floats("scale", &[0.5])])?;
    assert_eq!(numbers(&scaled), [0.0, 0.0, -2.0, 1.0]);
    let normalised = |norm| of("Normalizer", &[text("norm", norm)]).map(|t| numbers(&t));
    assert_eq!(normalised("L1")?, [1.0 / 3.0, 2.0 / 3.0, -3.0 / 7.0, 4.0 / 7.0]);
    assert_eq!((normalised("MAX")?, normalised("L2")?[2..].to_vec()), (vec![0.5, 1.0, -0.75, 1.0], vec![-0.6, 0.8]));
    assert_eq!(numbers(&of("Binarizer", &[float("threshold", 1.0)])?), [0.0, 1.0, 0.0, 1.0]);
    let at = Tensor::from_vec(vec![1i64, 1, 0], 3, &cpu())?;
    let picked = node("ArrayFeatureExtractor", "a at", "y", &[]);
    let picked =
        run_node(17, of_domain("ai.onnx.ml", picked), &[tensor("at", &at.to_vec::<i64>()?, &[3])], from_ref(&x))?;
    assert_eq!(numbers(&picked), [2.0, 2.0, 1.0, 4.0, 4.0, -3.0]);
    // The error names coefficients that do not fit.
    let error = of("LinearRegressor", &weights).unwrap_err();
    assert!(error.message().contains("4 coefficients were given for 1 results"), "{error}");
    assert!(of("LinearClassifier", &weights).unwrap_err().message().contains("whose labels are texts"));
    Ok(())
}

#[test]
fn determinants_have_gradients() -> Result<()> {
    let numbers_of = [0.0, 2.0, 1.0, 3.0, 1.0, 0.5, 1.0, -1.0, 4.0, 1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 1.0, 1.0];
    let x = Tensor::from_slice(&numbers_of.map(|v: f64| v as f32), [2, 3, 3], &cpu())?.require_grad()?;
    let y = run_node(22, node("Det", "a", "y", &[]), &[], from_ref(&x))?;
    // The rows of the second matrix depend on each other.
    assert!(y.allclose(&vector(&[-27.0, 0.0]), 1e-5, 1e-6)?, "{y}");
    y.sum(..)?.backward()?;
    // The cofactors of the first matrix.
    let grad = x.grad().expect("the input is a leaf").to_vec::<f32>()?;
    let expected = [4.5, -11.5, -4.0, -9.0, -1.0, 2.0, 0.0, 3.0, -6.0];
    assert!(grad.iter().zip(expected).all(|(g, e): (&f32, f32)| (g - e).abs() < 1e-4), "{grad:?}");
    assert!(run_node(22, node("Det", "a", "y", &[]), &[], &[matrix(&[1.0, 2.0], [1, 2])]).is_err());
    Ok(())
}

/// Two trees: of x0 <= 1 and then x1 < 0, and of x1 alone, whose missing values go where it holds.
fn trees(kind: &str, targets: &[i64]) -> Vec<AttributeProto> {
    vec![
        ints("nodes_treeids", &[0, 0, 0, 0, 0, 1, 1, 1]),
        ints("nodes_nodeids", &[0, 1, 2, 3, 4, 0, 1, 2]),
        ints("nodes_featureids", &[0, 1, 0, 0, 0, 1, 0, 0]),
        floats("nodes_values", &[1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0]),
        texts("nodes_modes", &["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"]),
        ints("nodes_truenodeids", &[1, 2, 0, 0, 0, 1, 0, 0]),
        ints("nodes_falsenodeids", &[4, 3, 0, 0, 0, 2, 0, 0]),
        ints("nodes_missing_value_tracks_true", &[0, 0, 0, 0, 0, 1, 0, 0]),
        ints(&format!("{kind}_treeids"), &[0, 0, 0, 1, 1]),
        ints(&format!("{kind}_nodeids"), &[2, 3, 4, 1, 2]),
        ints(&format!("{kind}_ids"), targets),
        floats(&format!("{kind}_weights"), &[0.5, 0.25, 0.125, 0.5, 0.0625]),
    ]
}

#[test]
fn ensembles_of_trees() -> Result<()> {
    let x = matrix(&[1.0, -1.0, 0.5, 3.0, 2.0, f32::NAN], [3, 2]);
    let of = |op: &str, outputs: &str, attributes: &[AttributeProto]| {
        run_node(17, of_domain("ai.onnx.ml", node(op, "a", outputs, attributes)), &[], from_ref(&x))
    };
    let regressed = |more: &[AttributeProto]| {
        of("TreeEnsembleRegressor", "y", &[&trees("target", &[0; 5])[..], more].concat()).map(|t| numbers(&t))
    };
    assert_eq!(regressed(&[])?, [0.5625, 0.75, 0.625]);
    let averaged = [text("aggregate_function", "AVERAGE"), floats("base_values", &[1.0])];
    assert_eq!(regressed(&averaged)?, [1.28125, 1.375, 1.3125]);
    assert_eq!(regressed(&[text("aggregate_function", "MIN")])?, [0.0625, 0.25, 0.125]);
    let classified = |targets: &[i64], labels: &[i64], output: &str| {
        let attributes = [&trees("class", targets)[..], &[ints("classlabels_int64s", labels)]].concat();
        let node = of_domain("ai.onnx.ml", node("TreeEnsembleClassifier", "a", "label scores", &attributes));
        run(17, graph("a", output, &[node], &[]), from_ref(&x))
    };
    let scores = classified(&[0, 1, 2, 0, 1], &[7, 8, 9], "scores")?;
    assert_eq!(numbers(&scores), [0.5, 0.0625, 0.0, 0.5, 0.25, 0.0, 0.5, 0.0, 0.125]);
    assert_eq!(classified(&[2, 1, 1, 2, 0], &[7, 8, 9], "label")?.to_vec::<i64>()?, [9, 9, 9]);
    // Leaves that weigh one of two classes.
    assert_eq!(numbers(&classified(&[0; 5], &[3, 4], "scores")?), [0.4375, 0.5625, 0.25, 0.75, 0.375, 0.625]);
    assert_eq!(classified(&[0; 5], &[3, 4], "label")?.to_vec::<i64>()?, [4, 4, 4]);
    // A tree whose nodes lead to each other has no leaves.
    let mut endless = trees("target", &[0; 5]);
    endless[5] = ints("nodes_truenodeids", &[0, 2, 0, 0, 0, 1, 0, 0]);
    let error = of("TreeEnsembleRegressor", "y", &endless).unwrap_err();
    assert!(error.message().contains("cycle"), "{error}");
    endless[5] = ints("nodes_truenodeids", &[9, 2, 0, 0, 0, 1, 0, 0]);
    assert!(of("TreeEnsembleRegressor", "y", &endless).unwrap_err().message().contains("not there"));
    Ok(())
}

#[test]
fn a_product_with_the_sigmoid_is_one_node() -> Result<()> {
    let x = vector(&[-2.0, 0.5, 3.0]);
    let expected = numbers(&x.silu()?);
    let sigmoid = node("Sigmoid", "a", "s", &[]);
    for product in [node("Mul", "a s", "y", &[]), node("Mul", "s a", "y", &[])] {
        let model = loaded(&model(13, graph("a", "y", &[sigmoid.clone(), product], &[])))?;
        assert_eq!(model.operators(), [("Swish".into(), 1)]);
        assert_eq!(numbers(&model.forward(from_ref(&x))?[0]), expected);
    }
    // A sigmoid that others read stays, as does that of another value.
    for (product, outputs) in [(node("Mul", "a s", "y", &[]), "y s"), (node("Mul", "b s", "y", &[]), "y")] {
        let model = loaded(&model(13, graph("a b", outputs, &[sigmoid.clone(), product], &[])))?;
        assert_eq!(model.operators(), [("Mul".into(), 1), ("Sigmoid".into(), 1)]);
        let y = numbers(&model.forward(&[x.clone(), x.clone()])?[0]);
        assert!(y.iter().zip(&expected).all(|(y, e)| (y - e).abs() < 1e-6), "{y:?}");
    }
    Ok(())
}
