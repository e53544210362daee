//! A server of predictions over TCP: a line of 64 pixels comes in, a line with the digit goes out. Each connection has a thread, and one thread
//! has the model: it answers in one batch all that waits. `cargo run --example server -- --address 127.0.0.1:7000`.

mod print;

use clap::Parser;
use isograd::data::{Labelled, Loader, digits};
use isograd::prelude::*;
use isograd::train::Trainer;
use print::print;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
    /// The address to listen at
    #[arg(long, default_value = "127.0.0.1:7000")]
    address: SocketAddr,
}

/// Answers requests, an image and where its digit is expected, until no connection is left.
fn answer(model: &Linear, requests: &Receiver<(Vec<f32>, Sender<i64>)>) -> Result<()> {
    while let Ok(first) = requests.recv() {
        let (images, replies): (Vec<_>, Vec<_>) = [first].into_iter().chain(requests.try_iter().take(63)).unzip();
        let x = Tensor::from_vec(images.concat(), (images.len(), 64), model.weight.device())?;
        let digits = no_grad(|| model.forward(&x)?.argmax(1)?.to_vec())?;
        // A client may be gone by now.
        let _gone = replies.iter().zip(digits).filter(|(reply, digit)| reply.send(*digit).is_err()).count();
    }
    Ok(())
}

/// Reads lines until the client closes the connection.
fn converse(mut stream: TcpStream, queue: &Sender<(Vec<f32>, Sender<i64>)>) -> io::Result<()> {
    for line in BufReader::new(stream.try_clone()?).lines() {
        let pixels: Vec<f32> = line?.split(' ').filter_map(|word| word.parse().ok()).collect();
        let (reply, digit) = channel();
        let is_sent = pixels.len() == 64 && queue.send((pixels, reply)).is_ok();
        let digit = if is_sent { digit.recv().ok() } else { None };
        writeln!(stream, "{}", digit.map_or("error: expected 64 numbers".into(), |digit| digit.to_string()))?;
    }
    Ok(())
}

/// Serves so many connections, and ends with the last of them.
pub fn serve(listener: &TcpListener, model: &Linear, connections: usize) -> Result<()> {
    let (queue, requests) = channel();
    thread::scope(move |scope| {
        let answers = scope.spawn(move || answer(model, &requests));
        for stream in listener.incoming().take(connections) {
            let (stream, queue) = (stream.map_err(Error::system)?, queue.clone());
            scope.spawn(move || converse(stream, &queue));
        }
        drop(queue);
        answers.join().unwrap_or_else(|_| Err(Error::value("server", "the thread of the model has panicked")))
    })
}

/// A model of the digits.
pub fn learnt(train: Labelled, device: &Device) -> Result<Linear> {
    let model = Linear::new(64, 10, &Init::new(device).seed(42))?;
    let (loader, adam) = (Loader::new(train, 32)?.shuffle(42).to(device), AdamW::new(&model).lr(2e-2));
    Trainer::new(&model, adam, loader, |model, (x, _)| model.forward(x), |y, (_, digit)| y.cross_entropy(digit))
        .run()?;
    Ok(model)
}

fn main() -> Result<()> {
    let Options { address, device } = Options::parse();
    let device = device.map_or_else(Device::best, |name| name.parse())?;
    let model = learnt(digits()?, &device)?;
    print(&format!("{device}: listening at {address}"));
    serve(&TcpListener::bind(address).map_err(Error::system)?, &model, usize::MAX)
}
