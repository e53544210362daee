//! `isograd parity --cases`.

use crate::parity::{apart, json};
use crate::refusing::assert_refused;
use crate::{ISOGRAD, run};
use isograd::nn::{Metadata, StateDict, load, save};
use isograd::parity::{self, Options};
use isograd::{Device, Tensor};
use serde_json::{Value, json as json_of};
use std::fs;
use std::path::{Path, PathBuf};

/// Cases from PyTorch, which generate.py beside them wrote.
fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

#[cfg(unix)]
#[test]
fn cases_of_a_folder_are_checked_by_other_processes() {
    let folder = parity::Folder::read(&recorded()).unwrap();
    let by = |apart| {
        let options = Options { devices: vec![Device::cpu().unwrap()], apart, ..Options::default() };
        parity::run_cases(&folder, &options, &mut |_| ()).unwrap().findings
    };
    let outcomes = |findings: Vec<_>| {
        let outcome = |finding| json_of!(finding)["outcome"].clone();
        findings.into_iter().map(outcome).collect::<Vec<Value>>()
    };
    let here = by(None);
    assert_eq!(outcomes(by(Some(apart(ISOGRAD, &["parity-worker"])))), outcomes(here));
    // One case ends its process whenever it is asked for, and takes no other with it.
    let name = folder.cases[0].name();
    let crash = format!(
        r#"while read -r task; do case $task in *'"{name}"'*) kill -SEGV $$;; *) echo "$task" | {ISOGRAD} parity-worker;; esac; done"#
    );
    let found = by(Some(apart("sh", &["-c", &crash])));
    let crashed: Vec<Value> =
        found.into_iter().map(|finding| json_of!(finding)).filter(|f| f["outcome"] != "passed").collect();
    let [one] = &crashed[..] else { panic!("{crashed:?}") };
    assert!(one["outcome"]["failed"].as_str().unwrap().contains("signal: 11"), "{one}");
    assert_eq!(one["worst"]["case"], name);
}

/// A copy of the cases after `change`.
fn changed(folder: &Path, change: impl Fn(&mut Vec<Value>)) -> String {
    let mut file = json(&recorded().join("cases.json"));
    change(file["cases"].as_array_mut().unwrap());
    fs::write(folder.join("cases.json"), file.to_string()).unwrap();
    fs::copy(recorded().join("pytorch.safetensors"), folder.join("pytorch.safetensors")).unwrap();
    folder.to_str().unwrap().to_string()
}

fn case<'a>(cases: &'a mut [Value], name: &str) -> &'a mut Value {
    cases.iter_mut().find(|case| case["name"] == name).unwrap()
}

#[test]
fn cases_of_another_program_pass_on_every_device() {
    let file = json(&recorded().join("cases.json"));
    let count = file["cases"].as_array().unwrap().len();
    let listed = run(&["devices"]).stdout;
    let devices = ["cpu", "opencl:0"].into_iter().filter(|name| listed.contains(name));
    for device in devices {
        let ended = run(&["parity", "--device", device, "--cases", recorded().to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.ends_with(&format!("\n0 skipped\n{count} passed, 0 failed\n")), "{}", ended.stdout);
    }
    assert!(count > 10 && file["cases"].as_array().unwrap().iter().any(|case| case["error"] == "Shape"));
}

#[test]
fn cases_that_say_nothing_are_counted_and_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), |cases| {
        case(cases, "leaky")["op"] = "LeakierRelu".into();
        case(cases, "layer_norm")["attributes"]["axis"] = 0.into();
        case(cases, "Cosine")["attributes"]["restarts"] = 2.into();
        case(cases, "outer_sizes")["attributes"]["transpose"] = true.into();
        // An attribute that is null counts as absent: no op has to read it.
        case(cases, "fused")["attributes"]["slope"] = Value::Null;
    });
    let ended = run(&["parity", "--device", "cpu", "--cases", &path]);
    let reasons = [
        "op LeakierRelu",
        "attribute axis of layer_norm",
        "attribute restarts of Cosine",
        "attribute transpose of matmul",
    ];
    let line = ended.stdout.lines().rev().nth(1).unwrap();
    assert!(
        line.starts_with("4 skipped: ") && reasons.iter().all(|r| line.contains(&format!("unknown {r} (1)"))),
        "{line}"
    );
    assert!(ended.stdout.ends_with("\n13 passed, 0 failed\n"), "{}", ended.stdout);
    // Nothing that passed is no success.
    let ended = run(&["parity", "--device", "cpu", "--cases", &path, "--filter", "leaky"]);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stdout.ends_with("\n1 skipped: unknown op LeakierRelu (1)\n0 passed, 0 failed\n"),
        "{}",
        ended.stdout
    );
}

#[test]
fn cases_that_differ_fail_and_are_repeated_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), |cases| {
        case(cases, "leaky")["attributes"]["slope"] = 0.30001.into();
        case(cases, "sequential")["attributes"]["1.approximate"] = "none".into();
        case(cases, "outer_sizes")["error"] = "Dtype".into();
        // Of its own tolerance, one is wide enough and one is not.
        case(cases, "momentum")["attributes"]["lr"] = 0.1001.into();
        case(cases, "momentum")["tolerance"] = json_of!({"rtol": 0.1, "atol": 0.1});
        case(cases, "fused")["tolerance"] = json_of!({"rtol": 1e-30});
    });
    let file = folder.path().join("results.json");
    let ended = run(&["parity", "--device", "cpu", "--cases", &path, "--json", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stdout.ends_with("\n0 skipped\n13 passed, 4 failed\n"), "{}", ended.stdout);
    for part in ["output 0, element", "expected an error of kind Dtype, got matmul: Shape"] {
        assert!(ended.stdout.contains(part), "{}", ended.stdout);
    }
    let command = format!("isograd parity --device cpu --cases {path} --filter '^leaky$'");
    assert!(ended.stdout.contains(&command), "{}", ended.stdout);
    let failed: Vec<Value> = json(&file)["findings"].as_array().unwrap().clone();
    let failed =
        failed.iter().filter(|f| !f["outcome"]["failed"].is_null()).map(|f| f["worst"]["case"].as_str().unwrap());
    assert_eq!(failed.collect::<Vec<_>>(), ["leaky", "fused", "sequential", "outer_sizes"]);
    let ended = run(&["parity", "--device", "cpu", "--cases", &path, "--filter", "^leaky$"]);
    assert!(ended.stdout.ends_with("\n0 passed, 1 failed\n"), "{}", ended.stdout);
}

#[test]
fn files_with_mistakes_are_refused_with_file_case_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |expected: &str| {
        let path = folder.path().to_str().unwrap();
        let ended = run(&["parity", "--device", "cpu", "--cases", path]);
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{expected:?} is not in {}", ended.stderr);
    };
    type Change = fn(&mut Vec<Value>);
    let changes: [(Change, &str); 17] = [
        (|all| all[0]["op"] = 1.into(), "cases.json: case momentum: op: expected a text"),
        (|all| all[0]["name"] = 1.into(), "cases.json: case 0: name: expected a text"),
        (|all| all[1] = all[0].clone(), "case momentum: inputs: there is no tensor momentum/in/p0"),
        (|all| all[0]["outptus"] = 1.into(), "case momentum: outptus: no such field; there are name, op,"),
        (|all| all[0]["outputs"] = Value::Null, "case momentum: outputs: expected a number"),
        (|all| all[0]["outputs"] = 4.into(), "case momentum: outputs: there is no tensor momentum/out/3"),
        (|all| all[0]["inputs"][0] = "q".into(), "case momentum: inputs: there is no tensor momentum/in/q"),
        (|all| drop(all.pop()), "pytorch.safetensors: tensor outer_sizes/in/a: no case of"),
        (|all| case(all, "leaky")["grads"] = json_of!(["y"]), "case leaky: grads: there is no tensor leaky/grad/y"),
        (
            |all| case(all, "leaky")["error"] = "Shape".into(),
            "case leaky: error: a call that is refused has no outputs",
        ),
        (|all| case(all, "outer_sizes")["error"] = "Form".into(), "error: \"Form\" is none of Shape, Dtype"),
        (|all| all[0]["tolerance"] = json_of!({"rtol": -1.0}), "case momentum: tolerance: expected"),
        (
            |all| all[0]["tolerance"] = json_of!({"out/7": 0.1}),
            "case momentum: tolerance: out/7 is none of out/0, out/1, out/2",
        ),
        (
            |all| all[0]["outputs"] = json_of!(["p0"]),
            "outputs: expected a number up to 65536, or a list of numbers of results",
        ),
        (|all| all[0]["outputs"] = json_of!(u64::MAX), "outputs: expected a number up to 65536"),
        (|all| all[0]["outputs"] = json_of!([u64::MAX]), "outputs: expected a number up to 65536"),
        (|all| all[0]["attributes"] = json_of!([1]), "case momentum: attributes: expected an object"),
    ];
    for (change, expected) in changes {
        changed(folder.path(), change);
        refused(expected);
    }
    for (text, expected) in [("{", "cases.json: EOF while parsing"), ("{}", "cases.json: cases: expected a list")] {
        fs::write(folder.path().join("cases.json"), text).unwrap();
        refused(expected);
    }
    // Tensors of other shapes and dtypes.
    let tensors = |x: &[usize], cotangent: &[usize], dtype: &str| {
        let entry = |name: &str, dtype: &str, shape: &[usize], at: usize| {
            let bytes = shape.iter().product::<usize>() * if dtype == "F32" { 4 } else { 2 };
            (
                format!("a/{name}"),
                json_of!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}),
                at + bytes,
            )
        };
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, dtype, shape) in
            [("in/x", dtype, x), ("out/0", "F32", &[2]), ("cotangent/0", "F32", cotangent), ("grad/x", "F32", &[2])]
        {
            let (name, entry, to) = entry(name, dtype, shape, end);
            header.insert(name, entry);
            end = to;
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; end]].concat()
    };
    let cases = r#"{"cases": [{"name": "a", "op": "relu", "inputs": ["x"], "outputs": 1, "grads": ["x"]}]}"#;
    fs::write(folder.path().join("cases.json"), cases).unwrap();
    let wrong: [(&[usize], &[usize], &str, &str); 2] = [
        (&[2], &[3], "F32", "case a: grads: cotangent/0 has shape [3], out/0 [2]"),
        (&[3], &[2], "F32", "case a: grads: grad/x has shape [2], and in/x is f32 [3]"),
    ];
    for (x, cotangent, dtype, expected) in wrong {
        fs::write(folder.path().join("pytorch.safetensors"), tensors(x, cotangent, dtype)).unwrap();
        refused(expected);
    }
    fs::write(folder.path().join("pytorch.safetensors"), "no header").unwrap();
    refused("pytorch.safetensors: ");
    // The same tensors in a second file.
    changed(folder.path(), |_| ());
    fs::copy(recorded().join("pytorch.safetensors"), folder.path().join("twice.safetensors")).unwrap();
    refused("pytorch.safetensors has it, too");
}

/// Writes a folder of these cases, and tensors of f32.
fn written(folder: &Path, cases: Value, tensors: &[(&str, &[f32])]) -> String {
    fs::write(folder.join("cases.json"), json_of!({"cases": cases}).to_string()).unwrap();
    let cpu = Device::cpu().unwrap();
    let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), &cpu).unwrap();
    let tensors: StateDict = tensors.iter().map(|(name, values)| (name.to_string(), tensor(values))).collect();
    save(folder.join("tensors.safetensors"), &tensors, &Metadata::new()).unwrap();
    folder.to_str().unwrap().to_string()
}

#[test]
fn refused_cases_are_counted_apart_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let cases = json_of!([
        {"name": "right", "op": "neg", "inputs": ["x"], "outputs": 1},
        {"name": "refused", "op": "dropout", "attributes": {"p": 2.0}, "inputs": ["x"], "outputs": 1},
    ]);
    let one: &[f32] = &[1.0];
    let tensors: [(&str, &[f32]); 4] =
        [("right/in/x", one), ("right/out/0", &[-1.0]), ("refused/in/x", one), ("refused/out/0", one)];
    let path = written(folder.path(), cases, &tensors);
    let file = folder.path().join("results.json");
    let ended = run(&["parity", "--device", "cpu", "--cases", &path, "--json", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("\n1 refused\n0 skipped\n1 passed, 0 failed\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("REFUSED dropout golden f32 on cpu: dropout: Attr: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("--filter '^refused$'"), "{}", ended.stdout);
    let of_dropout = json(&file)["findings"][0].clone();
    assert!(of_dropout["outcome"]["refused"].is_string(), "{of_dropout}");
    // Nothing that passed is no success.
    let ended = run(&["parity", "--device", "cpu", "--cases", &path, "--filter", "refused"]);
    assert_eq!(ended.code, Some(1));
}

#[test]
fn refusals_of_shapes_numbers_and_indices_are_no_failures() {
    let folder = tempfile::tempdir().unwrap();
    let cases = json_of!([
        {"name": "right", "op": "neg", "inputs": ["x"], "outputs": 1},
        {"name": "shapes", "op": "mul", "inputs": ["a", "b"], "outputs": 1},
        {"name": "probability", "op": "bce_loss", "attributes": {"reduction": "sum"}, "inputs": ["p", "t"], "outputs": 1},
    ]);
    let tensors: [(&str, &[f32]); 8] = [
        ("right/in/x", &[1.0]),
        ("right/out/0", &[-1.0]),
        ("shapes/in/a", &[1.0, 2.0]),
        ("shapes/in/b", &[1.0, 2.0, 3.0]),
        ("shapes/out/0", &[1.0]),
        ("probability/in/p", &[2.0]),
        ("probability/in/t", &[1.0]),
        ("probability/out/0", &[1.0]),
    ];
    let path = written(folder.path(), cases, &tensors);
    let ended = run(&["parity", "--device", "cpu", "--cases", &path]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("\n2 refused\n0 skipped\n1 passed, 0 failed\n"), "{}", ended.stdout);
}

#[test]
fn a_failed_chain_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cases = json_of!([
        {"name": "two steps", "inputs": ["x"], "outputs": ["z"], "calls": [
            {"op": "neg", "inputs": ["x"], "outputs": ["y"]},
            {"op": "square", "inputs": {"x": "y"}, "outputs": ["z"]},
        ]},
    ]);
    let path = written(folder.path(), cases, &[("two steps/in/x", &[2.0]), ("two steps/out/z", &[5.0])]);
    let ended = run(&["parity", "--device", "cpu", "--cases", &path]);
    assert!(ended.stdout.contains("\nFAILED calls two steps golden f32 on cpu: "), "{}", ended.stdout);
}

#[test]
fn a_tensor_of_another_dtype_skips_its_case_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cases = json_of!([
        {"name": "right", "op": "neg", "inputs": ["x"], "outputs": 1},
        {"name": "foreign", "op": "neg", "inputs": ["x"], "outputs": 1},
    ]);
    let path = written(folder.path(), cases, &[("right/in/x", &[1.0]), ("right/out/0", &[-1.0])]);
    let header = json_of!({
        "foreign/in/x": {"dtype": "U16", "shape": [2], "data_offsets": [0, 4]},
        "foreign/out/0": {"dtype": "U16", "shape": [1], "data_offsets": [4, 6]},
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 6]].concat();
    fs::write(folder.path().join("foreign.safetensors"), file).unwrap();
    let ended = run(&["parity", "--device", "cpu", "--cases", &path]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let last = "\n1 skipped: no tensor is U16, as foreign/in/x is (1)\n1 passed, 0 failed\n";
    assert!(ended.stdout.ends_with(last), "{}", ended.stdout);
}

/// Of ops and of several calls, right or wrong, by this process and by others.
#[test]
fn what_cases_compute_is_written_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let cases = json_of!([
        {"name": "a/b c", "op": "mul", "inputs": ["a", "b"], "outputs": 1, "grads": ["a"]},
        {"name": "chain", "inputs": ["x"], "outputs": ["z"], "calls": [
            {"op": "neg", "inputs": ["x"], "outputs": ["y"]},
            {"op": "square", "inputs": {"x": "y"}, "outputs": ["z"]},
        ]},
    ]);
    let tensors: [(&str, &[f32]); 7] = [
        ("a/b c/in/a", &[1.0, 2.0]),
        ("a/b c/in/b", &[3.0, 4.0]),
        ("a/b c/out/0", &[0.0, 8.0]),
        ("a/b c/cotangent/0", &[1.0, 1.0]),
        ("a/b c/grad/a", &[3.0, 5.0]),
        ("chain/in/x", &[3.0]),
        ("chain/out/z", &[9.0]),
    ];
    let path = written(folder.path(), cases, &tensors);
    let dump = folder.path().join("dump");
    let read = |device: &str, file: &str| -> Vec<(String, Vec<f64>)> {
        let contents = load(dump.join(device).join(file), &Device::cpu().unwrap()).unwrap();
        contents.tensors.iter().map(|(name, t)| (name.clone(), t.to_f64_vec().unwrap())).collect()
    };
    let of_call = [("a/b c/grad/a".to_string(), vec![3.0, 4.0]), ("a/b c/out/0".to_string(), vec![3.0, 8.0])];
    let of_chain = [("chain/out/y".to_string(), vec![-3.0]), ("chain/out/z".to_string(), vec![9.0])];
    let listed = run(&["devices"]).stdout;
    let devices = [("cpu", "cpu"), ("opencl:0", "opencl%3a%0")];
    for (device, written) in devices.into_iter().filter(|(name, _)| listed.contains(name)) {
        let ended = run(&["parity", "--device", device, "--cases", &path, "--dump", dump.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        // Both results that are wrong are told.
        let told = ["output 0, element 0", "1 of 2 elements are off; the gradient of `a`, element 1"];
        assert!(told.iter().all(|part| ended.stdout.contains(part)), "{}", ended.stdout);
        assert_eq!(read(written, "a%2f%b%20%c.safetensors"), of_call);
        assert_eq!(read(written, "chain.safetensors"), of_chain);
    }
    assert_refused(
        &run(&["parity", "--device", "cpu", "--cases", "3", "--dump", dump.to_str().unwrap()]),
        &["--dump is of the cases of a folder"],
    );
}

#[test]
fn chains_with_mistakes_are_refused_with_case_call_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = [
        (json_of!({"op": "neg", "inputs": {"x": "y"}}), "call 1: inputs: y is no input of the case and no result of a"),
        (json_of!({"op": "neg", "outputs": [1]}), "call 1: outputs: expected a list of names"),
        (json_of!({"op": "neg", "grads": ["x"]}), "call 1: grads: no such field; there are op, module, attributes,"),
        (json_of!({"module": "norm", "inputs": ["x"]}), "call 1: module: no call before has built norm"),
        (json_of!({"backward": ["x"], "cotangents": ["x", "x"]}), "call 1: cotangents: 2 names for 1 tensors"),
        (json_of!({"inputs": ["x"]}), "call 1: expected one of op, module, leaves, backward, gradients, grad"),
        (json_of!({"op": "neg", "inputs": ["x"], "outputs": ["z"]}), "case a: outputs: y is a result of no call"),
    ];
    for (call, expected) in wrong {
        let cases = json_of!([{"name": "a", "inputs": ["x"], "outputs": ["y"], "calls": [call]}]);
        let path = written(folder.path(), cases, &[("a/in/x", &[1.0]), ("a/out/y", &[1.0])]);
        let ended = run(&["parity", "--device", "cpu", "--cases", &path]);
        assert_eq!(ended.code, Some(2), "{}", ended.stdout);
        assert!(ended.stderr.contains(expected), "{expected:?} is not in {}", ended.stderr);
    }
}

/// Every op and module is there, and what the list says of some is what they do.
#[test]
fn the_list_has_every_op_with_its_inputs_attributes_defaults_and_dtypes() {
    let ended = run(&["parity", "--list"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let all = parity::registry::OPS.iter().chain(parity::registry::MODULES.iter());
    for op in all {
        let head = format!("{} ({})", op.name, op.category);
        assert!(ended.stdout.lines().any(|line| line.starts_with(&head)), "{head} is not listed");
    }
    let of = |op: &str| -> Vec<String> {
        let ended = run(&["parity", "--list", "--filter", &format!("^{op}$")]);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        ended.stdout.lines().map(words).collect()
    };
    let gemm = [
        "gemm (matrix) f64 f32 f16 bf16",
        "input a",
        "input b",
        "input c optional",
        "attribute alpha a number; default 1.0",
        "attribute beta a number; default 1.0",
        "attribute trans_a a bool; default false",
        "attribute trans_b a bool; default false",
    ];
    assert_eq!(of("gemm"), gemm);
    let gather = ["input index i32 or i64", "input x", "attribute dim an integer"];
    assert_eq!(of("gather")[1..], gather);
    let lines = [
        ("adamw", "attribute wd a number; default 0.01"),
        ("adamw", "attribute beta2 a number; default 0.999"),
        ("adamw", "attribute lr a number, or a list of one for each step; default 0.001"),
        ("adamw", "input 0.exp_avg one or several; optional"),
        ("adamw", "input p0 one or several"),
        ("muon", "attribute nesterov a bool; default true"),
        ("sgd", "attribute lr a number, or a list of one for each step"),
        ("max_pool2d", "attribute kernel_size a size, or a list of one for each dimension"),
        ("contrastive_loss", "input x2"),
        ("Gelu", "attribute approximate none or tanh; default none"),
        ("fill_", "fill_ (copy) f64 f32 f16 bf16 i64 i32 u8 bool"),
        ("BatchNorm2d", "input running_mean optional"),
    ];
    for (op, line) in lines {
        assert!(of(op).iter().any(|found| found == line), "{line:?} is not in {:?}", of(op));
    }
    assert_refused(&run(&["parity", "--list", "--filter", "frobnicate"]), &["--filter finds none of the ops"]);
}
