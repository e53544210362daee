//! Examples of the library, as far as they are of few steps: what they learn, and what they leave.

#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/adapters.rs"]
mod adapters;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/gpt.rs"]
mod gpt;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/interop.rs"]
mod interop;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/onnx_export.rs"]
mod onnx_export;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/physics.rs"]
mod physics;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/reinforce.rs"]
mod reinforce;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/server.rs"]
mod server;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/shortest_paths.rs"]
mod shortest_paths;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/two_ranks.rs"]
mod two_ranks;
#[allow(dead_code)]
#[path = "../../../crates/isograd/examples/vae.rs"]
mod vae;

use isograd::data::digits;
use isograd::{Device, Error, Result};
use isograd_tests::harness::{self, Outcome, expect};
use libtest_mimic::Trial;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

pub fn trials(device: &Device) -> Vec<Trial> {
    // Thousands of small ops take minutes on an emulated device. Other tests run these ops on every device.
    if !device.name().starts_with("cpu") {
        return Vec::new();
    }
    let check = |aspect, run| harness::check(device, "examples", aspect, run);
    vec![
        check("adapters_learn_beside_a_model_that_stays_as_it_is", |d| {
            let ([without, with], [before, after]) = adapters::train(d, 80)?;
            let learns = with < 0.5 * without && before == after && before < 0.5 * without;
            Ok(expect(learns, format!("{without} without, {with} with; {before} before, {after} after")))
        }),
        check("a_gpt_continues_a_text", |d| {
            let (loss, written) = gpt::train(d, 150)?;
            Ok(expect(written.starts_with("one two three four five"), format!("loss {loss}: {written}")))
        }),
        check("data_of_other_libraries_come_back_as_they_were", |d| interop::run(d, folder()?.path()).map(Ok)),
        check("a_network_is_exported", exported),
        check("a_network_solves_a_differential_equation", |d| {
            let error = physics::train(d, 100)?;
            Ok(expect(error < 0.08, format!("the error is {error}")))
        }),
        check("a_policy_balances_a_pole", |d| {
            let (first, last) = reinforce::train(d, 25)?;
            Ok(expect(last > 2.0 * first, format!("{first} steps at first, {last} at last")))
        }),
        check("a_server_answers_clients", answered),
        check("a_graph_network_finds_distances", |d| {
            let (deviation, error) = shortest_paths::train(d, 100)?;
            Ok(expect(error < 0.7 * deviation, format!("error {error}, deviation {deviation}")))
        }),
        check("two_ranks_learn_what_one_does", |d| {
            let (one, two) =
                (two_ranks::train(std::slice::from_ref(d), 4)?, two_ranks::train(&[d.clone(), d.clone()], 4)?);
            let is_same = two[0] == two[1] && (one[0] - two[0]).abs() < 0.02;
            Ok(expect(is_same && one[0] > 0.8, format!("{one:?}, {two:?}")))
        }),
        check("an_autoencoder_with_a_critic_learns", |d| {
            let (error, mean, new) = vae::train(d, 8)?;
            Ok(expect(error < 0.8 * mean && new.dims() == [8, 8], format!("{error}, and the mean image has {mean}")))
        }),
    ]
}

fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(Error::system)
}

/// Three clients ask for the digits of 60 images each, and one sends what is no image.
fn answered(device: &Device) -> Result<Outcome> {
    let (train, test) = digits()?.split_every(5)?;
    let model = server::learnt(train, device)?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::system)?;
    let address = listener.local_addr().map_err(Error::system)?;
    let images: Vec<&[f32]> = test.features().chunks(64).take(180).collect();
    let line = |image: &&[f32]| image.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = images.iter().map(line).collect();
    let (answers, refused) = thread::scope(|scope| {
        let server = scope.spawn(|| server::serve(&listener, &model, 4));
        let clients: Vec<_> = lines.chunks(60).map(|part| scope.spawn(move || ask(address, part))).collect();
        let answers =
            clients.into_iter().map(|client| client.join().expect("a client")).collect::<io::Result<Vec<_>>>();
        let refused = ask(address, &["1 2 three".into()]);
        server.join().expect("a server").map(|()| (answers, refused))
    })?;
    let (answers, refused) = (answers.map_err(Error::system)?.concat(), refused.map_err(Error::system)?);
    let right = answers.iter().zip(test.labels()).filter(|(answer, label)| **answer == label.to_string()).count();
    let is_refused = refused == ["error: expected 64 numbers"];
    Ok(expect(answers.len() == 180 && right > 150 && is_refused, format!("{right} of 180 are right; {refused:?}")))
}

/// The answers to lines, on a connection of their own.
fn ask(address: SocketAddr, lines: &[String]) -> io::Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    lines.iter().try_for_each(|line| writeln!(stream, "{line}"))?;
    BufReader::new(stream).lines().take(lines.len()).collect()
}

fn exported(device: &Device) -> Result<Outcome> {
    let folder = folder()?;
    let file = folder.path().join("digits.onnx");
    let (accuracy, nodes) = onnx_export::train(device, &file, 2)?;
    let bytes = std::fs::read(&file).map_err(|e| Error::io(&file, "reading", e))?;
    let has = |name: &str| nodes.iter().any(|node| node == name);
    let is_whole = ["Cast", "Conv", "MaxPool", "Gemm", "Softmax"].into_iter().all(has);
    // The file has the weights of the last layer at least, and the name of the input.
    let has_name = bytes.windows(6).any(|window| window == b"pixels");
    let found = format!("accuracy {accuracy}, {} bytes, {nodes:?}", bytes.len());
    Ok(expect(accuracy > 0.85 && is_whole && has_name && bytes.len() > 4 * 1280, found))
}
