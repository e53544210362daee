//! Cases from outside: folders of calls with the results of another program.

use isograd::nn::{Metadata, StateDict, save};
use isograd::parity::{Folder, Options, Outcome, run_cases};
use isograd::{Device, Result, Tensor};
use isograd_tests::harness;
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |aspect, run| harness::check(device, "cases", aspect, run);
    vec![
        check("calls_read_results_by_name", calls_by_name),
        check("a_second_pass_adds_to_gradients", second_pass),
        check("gradients_of_gradients", gradients_of_gradients),
        check("gradients_of_several_results_add_up", several_results),
        check("a_module_is_trained_and_then_evaluated", module_in_use),
        check("a_training_curve", training_curve),
        check("zero_gradients_of_ops_off_the_tape", zero_gradients),
        check("refusals_are_no_failures", refusals),
        check("every_result_has_its_own_tolerance", tolerances),
        check("results_may_be_left_out", left_out),
        check("a_failure_says_how_many_elements_are_off", counted_elements),
        check("a_momentum_without_a_step_is_used", momentum_without_step),
        check("unknown_names_in_a_chain_skip_its_case", unknown_names),
    ]
}

/// A folder of one case, and what comes of it on a device.
fn outcome(device: &Device, mut case: Value, tensors: &[(&str, Tensor)]) -> Result<Outcome> {
    let folder = tempfile::tempdir().expect("a folder");
    case["name"] = "case".into();
    std::fs::write(folder.path().join("cases.json"), json!({"cases": [case]}).to_string()).expect("a file");
    let tensors: StateDict = tensors.iter().map(|(name, t)| (format!("case/{name}"), t.clone())).collect();
    save(folder.path().join("tensors.safetensors"), &tensors, &Metadata::new())?;
    let folder = Folder::read(folder.path()).map_err(|why| isograd::Error::value("cases", why))?;
    let options = Options { devices: vec![device.clone()], ..Options::default() };
    let mut report = run_cases(&folder, &options, &mut |_| ())?;
    Ok(report.findings.swap_remove(0).outcome)
}

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), &isograd_tests::cpu()).expect("as many values as the shape has")
}

fn passes(what: &str, outcome: Outcome) -> harness::Outcome {
    if outcome == Outcome::Passed { Ok(()) } else { Err(format!("{what}: {outcome:?}")) }
}

/// Demands a failure whose message has these parts.
fn fails(what: &str, outcome: Outcome, says: &[&str]) -> harness::Outcome {
    match &outcome {
        Outcome::Failed(why) if says.iter().all(|part| why.contains(part)) => Ok(()),
        _ => Err(format!("{what}: {outcome:?}, expected a failure that says {says:?}")),
    }
}

/// A case passes, and fails with the name of the result if one that is given is changed.
fn is_checked(
    device: &Device,
    case: Value,
    inputs: &[(&str, Tensor)],
    results: &[(&str, &[f32])],
) -> Result<harness::Outcome> {
    let with = |changed: Option<usize>| {
        let mut all: Vec<(&str, Tensor)> = inputs.to_vec();
        for (k, (name, values)) in results.iter().enumerate() {
            let mut values = values.to_vec();
            values[0] += if changed == Some(k) { 0.25 } else { 0.0 };
            all.push((name, t(&values)));
        }
        outcome(device, case.clone(), &all)
    };
    let mut found = passes("the right results", with(None)?);
    for (k, (name, _)) in results.iter().enumerate() {
        let named = if *name == "out/0" { "output 0" } else { name.trim_start_matches("out/") };
        found = found.and(fails("a wrong result", with(Some(k))?, &[named]));
    }
    Ok(found)
}

fn calls_by_name(device: &Device) -> Result<harness::Outcome> {
    let case = json!({"inputs": ["x", "w"], "outputs": ["h", "y"], "calls": [
        {"op": "mul", "inputs": {"a": "x", "b": "w"}, "outputs": ["h"]},
        {"op": "relu", "inputs": {"x": "h"}, "outputs": ["y"]},
    ]});
    let inputs = [("in/x", t(&[1.0, -2.0])), ("in/w", t(&[3.0]))];
    is_checked(device, case, &inputs, &[("out/h", &[3.0, -6.0]), ("out/y", &[3.0, 0.0])])
}

fn second_pass(device: &Device) -> Result<harness::Outcome> {
    let case = json!({"inputs": ["x", "g"], "outputs": ["once", "twice"], "calls": [
        {"leaves": ["x"]},
        {"op": "mul", "inputs": {"a": "x", "b": "x"}, "outputs": ["y"]},
        {"backward": ["y"], "cotangents": ["g"]},
        {"gradients": ["x"], "outputs": ["once"]},
        {"backward": ["y"], "cotangents": ["g"]},
        {"gradients": ["x"], "outputs": ["twice"]},
    ]});
    let inputs = [("in/x", t(&[1.0, 2.0])), ("in/g", t(&[1.0, 0.5]))];
    is_checked(device, case, &inputs, &[("out/once", &[2.0, 2.0]), ("out/twice", &[4.0, 4.0])])
}

fn gradients_of_gradients(device: &Device) -> Result<harness::Outcome> {
    let case = json!({"inputs": ["x"], "outputs": ["dx", "ddx"], "calls": [
        {"leaves": ["x"]},
        {"op": "mul", "inputs": {"a": "x", "b": "x"}, "outputs": ["square"]},
        {"op": "mul", "inputs": {"a": "square", "b": "x"}, "outputs": ["y"]},
        {"grad": ["y"], "for": ["x"], "create_graph": true, "outputs": ["dx"]},
        {"grad": ["dx"], "for": ["x"], "outputs": ["ddx"]},
    ]});
    is_checked(device, case, &[("in/x", t(&[2.0, -1.0]))], &[("out/dx", &[12.0, 3.0]), ("out/ddx", &[12.0, -6.0])])
}

/// Zeros with respect to a leaf on which no result depends.
fn several_results(device: &Device) -> Result<harness::Outcome> {
    let case = json!({"inputs": ["x", "z", "g"], "outputs": ["dx", "dz"], "calls": [
        {"leaves": ["x", "z"]},
        {"op": "mul", "inputs": {"a": "x", "b": "x"}, "outputs": ["y0"]},
        {"op": "neg", "inputs": ["x"], "outputs": ["y1"]},
        {"grad": ["y0", "y1"], "cotangents": ["g", "g"], "for": ["x", "z"], "outputs": ["dx", "dz"]},
    ]});
    let inputs = [("in/x", t(&[3.0])), ("in/z", t(&[7.0])), ("in/g", t(&[2.0]))];
    is_checked(device, case, &inputs, &[("out/dx", &[10.0]), ("out/dz", &[0.0])])
}

/// Batches of means 1 and 6 and unbiased variances 2 and 8. Only the results that are named are given.
fn module_in_use(device: &Device) -> Result<harness::Outcome> {
    let names = ["running_mean", "running_var", "num_batches_tracked"];
    let case = json!({"inputs": ["x0", "x1", "x2", names[0], names[1], names[2]], "outputs": ["mean", "y"], "calls": [
        {"op": "BatchNorm1d", "module": "norm", "attributes": {"eps": 0.21},
            "inputs": {"x": "x0", (names[0]): names[0], (names[1]): names[1], (names[2]): names[2]}},
        {"module": "norm", "inputs": {"x": "x1"}, "attributes": {"returns": ["y", "running_mean"]}, "outputs": [null, "mean"]},
        {"module": "norm", "inputs": {"x": "x2"}, "attributes": {"training": false}, "outputs": ["row"]},
        {"op": "flatten", "inputs": {"x": "row"}, "attributes": {"first": 0, "last": -1}, "outputs": ["y"]},
    ]});
    let column = |values: &[f32]| t(values).reshape((values.len(), 1));
    let inputs = [
        ("in/x0", column(&[0.0, 2.0])?),
        ("in/x1", column(&[4.0, 8.0])?),
        ("in/x2", column(&[1.69])?),
        ("in/running_mean", t(&[0.0])),
        ("in/running_var", t(&[1.0])),
        ("in/num_batches_tracked", Tensor::full((), 0, isograd::DType::I64, &isograd_tests::cpu())?),
    ];
    // The variance is 0.9 (0.9 + 0.2) + 0.8 = 1.79.
    is_checked(device, case, &inputs, &[("out/mean", &[0.69]), ("out/y", &[std::f32::consts::FRAC_1_SQRT_2])])
}

/// `loss = (w x)^2` with x = 2, by gradient descent with a momentum.
fn training_curve(device: &Device) -> Result<harness::Outcome> {
    let step = |w: &str, loss: &str, g: &str| {
        vec![
            json!({"leaves": [w]}),
            json!({"op": "mul", "inputs": {"a": w, "b": "x"}, "outputs": ["y"]}),
            json!({"op": "mul", "inputs": {"a": "y", "b": "y"}, "outputs": [loss]}),
            json!({"grad": [loss], "for": [w], "outputs": [g]}),
        ]
    };
    let attributes = json!({"lr": 0.1, "momentum": 0.5, "returns": ["p0", "0.momentum_buffer"]});
    let mut calls = step("w", "loss0", "g0");
    calls.push(
        json!({"op": "sgd", "attributes": attributes, "inputs": {"p0": "w", "g0_0": "g0"}, "outputs": ["w1", "m1"]}),
    );
    calls.extend(step("w1", "loss1", "g1"));
    calls.push(json!({"op": "sgd", "attributes": attributes,
        "inputs": {"p0": "w1", "g0_0": "g1", "0.momentum_buffer": "m1"}, "outputs": ["w2"]}));
    let case = json!({"inputs": ["w", "x"], "outputs": ["loss0", "loss1", "w2"], "calls": calls});
    let results: [(&str, &[f32]); 3] = [("out/loss0", &[4.0]), ("out/loss1", &[0.16]), ("out/w2", &[-0.36])];
    is_checked(device, case, &[("in/w", t(&[1.0])), ("in/x", t(&[2.0]))], &results)
}

fn zero_gradients(device: &Device) -> Result<harness::Outcome> {
    let mut found = Ok(());
    for op in ["floor", "sign"] {
        let case = json!({"op": op, "inputs": ["x"], "outputs": 1, "grads": ["x"]});
        let y = if op == "floor" { [1.0, -3.0] } else { [1.0, -1.0] };
        let with = |gradient: &[f32]| {
            let x = [("in/x", t(&[1.5, -2.5])), ("out/0", t(&y)), ("cotangent/0", t(&[1.0, 1.0]))];
            outcome(device, case.clone(), &[&x[..], &[("grad/x", t(gradient))]].concat())
        };
        found = found.and(passes(op, with(&[0.0, 0.0])?));
        found = found.and(fails(op, with(&[0.0, 1.0])?, &["the gradient of `x`", "none arrives", "1 of 2 elements"]));
    }
    Ok(found)
}

fn refusals(device: &Device) -> Result<harness::Outcome> {
    let integers = Tensor::from_slice(&[1i64, 2], 2, &isograd_tests::cpu())?;
    let dtype = json!({"op": "exp", "inputs": ["x"], "outputs": 1});
    let attribute = json!({"op": "dropout", "attributes": {"p": 2.0}, "inputs": ["x"], "outputs": 1});
    let shape = json!({"op": "reshape", "attributes": {"shape": [3]}, "inputs": ["x"], "outputs": 1});
    let chain = json!({"inputs": ["x"], "outputs": ["y"], "calls": [
        {"op": "exp", "inputs": ["x"], "outputs": ["y"]},
    ]});
    let cases = [
        (dtype, integers.clone(), "exp: Dtype"),
        (shape, t(&[1.0, 2.0]), "reshape: Shape"),
        (attribute, t(&[1.0, 2.0]), "dropout: Attr"),
        (chain, integers, "call 1 (exp): exp: Dtype"),
    ];
    for (case, x, says) in cases {
        let result = if case.get("calls").is_some() { "out/y" } else { "out/0" };
        let found = outcome(device, case, &[("in/x", x.clone()), (result, x)])?;
        match &found {
            Outcome::Refused(why) if why.starts_with(says) => {}
            _ => return Ok(Err(format!("{found:?}, expected a refusal that begins with {says:?}"))),
        }
    }
    // A result of a wrong shape is a failure.
    let case = json!({"op": "neg", "inputs": ["x"], "outputs": 1});
    let tensors = [("in/x", t(&[1.0, 2.0])), ("out/0", t(&[-1.0]))];
    Ok(fails("shapes", outcome(device, case, &tensors)?, &["shape"]))
}

fn tolerances(device: &Device) -> Result<harness::Outcome> {
    let with = |tolerance: Value| {
        let case = json!({"op": "mul", "inputs": ["a", "b"], "outputs": 1, "grads": ["a"], "tolerance": tolerance});
        let tensors = [
            ("in/a", t(&[1.0, 2.0])),
            ("in/b", t(&[3.0, 4.0])),
            ("out/0", t(&[3.001, 8.0])),
            ("cotangent/0", t(&[1.0, 1.0])),
            ("grad/a", t(&[3.0, 4.2])),
        ];
        outcome(device, case, &tensors)
    };
    let (near, far) = (json!({"atol": 0.01}), json!({"rtol": 0.1}));
    let found = passes("both are wide enough", with(json!({"out/0": near, "grad/a": far}))?)
        .and(fails("one is not", with(json!({"out/0": near, "grad/a": near}))?, &["the gradient of `a`"]))
        .and(fails("the other has none", with(json!({"grad/a": far}))?, &["output 0"]));
    Ok(found.and(fails("none is", with(json!({"rtol": 0.0}))?, &["output 0", "the gradient of `a`"])))
}

fn left_out(device: &Device) -> Result<harness::Outcome> {
    let with = |outputs: Value, positions: [i64; 3]| {
        let attributes = json!({"dim": 0, "descending": false});
        let case = json!({"op": "sort", "attributes": attributes, "inputs": ["x"], "outputs": outputs});
        let positions = Tensor::from_slice(&positions, 3, &isograd_tests::cpu())?;
        outcome(device, case, &[("in/x", t(&[3.0, 1.0, 2.0])), ("out/1", positions)])
    };
    let found = passes("the positions alone", with(json!([1]), [1, 2, 0])?);
    Ok(found.and(fails("other positions", with(json!([1]), [1, 0, 2])?, &["output 1", "2 of 3 elements are off"])))
}

fn counted_elements(device: &Device) -> Result<harness::Outcome> {
    let case = json!({"op": "neg", "inputs": ["x"], "outputs": 1});
    let tensors = [("in/x", t(&[1.0, 2.0, 3.0, 4.0])), ("out/0", t(&[-1.0, 2.0, -3.0, 4.0]))];
    Ok(fails("two elements", outcome(device, case, &tensors)?, &["element 1: got -2e0", "2 of 4 elements are off"]))
}

/// PyTorch's dictionary of states has a momentum of `sgd` without a count of steps: the dampening, which the first step leaves
/// out, applies. States that come with a count are not silently left aside without one.
fn momentum_without_step(device: &Device) -> Result<harness::Outcome> {
    let attributes = json!({"lr": 0.1, "momentum": 0.5, "dampening": 0.5});
    let case =
        json!({"op": "sgd", "attributes": attributes, "inputs": ["p0", "g0_0", "0.momentum_buffer"], "outputs": 1});
    let inputs = [("in/p0", t(&[1.0])), ("in/g0_0", t(&[4.0])), ("in/0.momentum_buffer", t(&[8.0]))];
    // 0.5 8 + 0.5 4 = 6.
    let found = is_checked(device, case, &inputs, &[("out/0", &[0.4])])?;
    let case = json!({"op": "adam", "inputs": ["p0", "g0_0", "0.exp_avg"], "outputs": 1});
    let inputs = [("in/p0", t(&[1.0])), ("in/g0_0", t(&[4.0])), ("in/0.exp_avg", t(&[8.0])), ("out/0", t(&[1.0]))];
    let refused = outcome(device, case, &inputs)?;
    match &refused {
        Outcome::Refused(why) if why.contains("`0.step` is missing") => Ok(found),
        _ => Ok(Err(format!("{refused:?}, expected a refusal that names 0.step"))),
    }
}

fn unknown_names(device: &Device) -> Result<harness::Outcome> {
    let cases = [
        (
            json!({"op": "relu", "inputs": ["x"], "attributes": {"slope": 1}, "outputs": ["y"]}),
            "attribute slope of relu",
        ),
        (json!({"op": "relux", "inputs": ["x"], "outputs": ["y"]}), "op relux"),
        (json!({"op": "relu", "inputs": {"x": "x", "z": "x"}, "outputs": ["y"]}), "input z of relu"),
    ];
    for (call, says) in cases {
        let case = json!({"inputs": ["x"], "outputs": ["y"], "calls": [call]});
        let found = outcome(device, case, &[("in/x", t(&[1.0])), ("out/y", t(&[1.0]))])?;
        if found != Outcome::Skipped(format!("unknown {says}")) {
            return Ok(Err(format!("{found:?}, expected that {says} is unknown")));
        }
    }
    Ok(Ok(()))
}
