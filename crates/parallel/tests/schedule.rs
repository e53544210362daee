//! A simulation of the buckets of a step: it reproduces what two GPUs took, and says what to expect of more. docs/src/parallel.md has the
//! figures and the assumptions.

/// A pass on each of some ranks, in seconds and bytes.
#[derive(Clone, Copy)]
struct Step {
    /// Of one rank alone: forward pass, gradients of the last product, gradients of each block, gradients of the tables, optimizer.
    forward: f64,
    head: f64,
    block: f64,
    tables: f64,
    optimizer: f64,
    ranks: usize,
    /// Of the bus: bytes times `2 (n - 1) / n` over time.
    bandwidth: f64,
    /// Of an `all_reduce` without bytes.
    latency: f64,
}

/// Bytes of gradients of each of 12 blocks of GPT-2, in f32.
const BLOCK: f64 = 4.0 * 7_087_872.0;
/// Bytes of the device's memory a second, of copies: gradients go into buckets and back, read and written.
const MEMORY: f64 = 2.6e12;
/// The part of a reduction's time that computing loses beside it: both use the same memory and processors.
const CONTENTION: f64 = 0.5;

impl Step {
    /// Seconds of a step with buckets of so many bytes. `tables` is the number of bytes of the tables' gradients, which come last.
    fn seconds(&self, bucket: f64, tables: f64) -> f64 {
        let (n, mut now, mut free, mut waiting) = (self.ranks as f64, self.forward + self.head, 0.0f64, 0.0);
        let reduce = |bytes: f64| self.latency + bytes * 2.0 * (n - 1.0) / n / self.bandwidth;
        let (mut reductions, mut all) = (Vec::new(), 0.0);
        let blocks = std::iter::repeat_n((self.block, BLOCK), 12);
        for (i, (seconds, bytes)) in blocks.chain([(self.tables, tables)]).enumerate() {
            now += seconds;
            waiting += bytes;
            all += bytes;
            if waiting >= bucket || i == 12 {
                let start = now.max(free);
                free = start + reduce(waiting);
                reductions.push((start, free));
                waiting = 0.0;
            }
        }
        if self.ranks == 1 {
            return now + self.optimizer;
        }
        let hidden: f64 = reductions.iter().map(|(start, end)| (end.min(now) - start).max(0.0)).sum();
        now.max(free) + CONTENTION * hidden + 4.0 * all / MEMORY + self.optimizer
    }
}

/// A step of so many seconds on one GPU, in the shares that a profile of GPT-2 has: a third forward, two thirds backward, of which a
/// quarter are the last product and the loss.
fn step(seconds: f64, optimizer: f64, ranks: usize, bandwidth: f64, latency: f64) -> Step {
    let passes = seconds - optimizer;
    let backward = passes * 2.0 / 3.0;
    let (head, tables) = (backward / 4.0, backward * 0.01);
    let block = (backward - head - tables) / 12.0;
    Step { forward: passes / 3.0, head, block, tables, optimizer, ranks, bandwidth, latency }
}

const TOKENS: f64 = 16.0 * 1024.0;
const BUCKET: f64 = 25e6;
/// Measured on two H100s by NVLink.
const NVLINK: f64 = 297e9;

#[test]
fn two_gpus_take_what_was_measured() {
    // 50,257 words, 1,024 positions, and the last norm.
    let tables = 4.0 * (50_257.0 + 1024.0 + 2.0) * 768.0;
    let two = step(TOKENS / 219_045.0, 0.0028, 2, NVLINK, 30e-6);
    for (bucket, measured) in [(BUCKET, 424_817.0), (f64::INFINITY, 420_881.0)] {
        let found = 2.0 * TOKENS / two.seconds(bucket, tables);
        println!("{found:.0} tokens/s, measured {measured}");
        assert!((found / measured - 1.0).abs() < 0.01, "{found} tokens/s, expected {measured}");
    }
    assert!(two.seconds(BUCKET, tables) < two.seconds(f64::INFINITY, tables));
}

/// The share of n times one GPU, in percent.
fn share(seconds: f64, ranks: usize, bandwidth: f64, latency: f64) -> f64 {
    let tables = 4.0 * (50_304.0 + 1024.0 + 2.0) * 768.0;
    100.0 * seconds / step(seconds, 0.0028, ranks, bandwidth, latency).seconds(BUCKET, tables)
}

/// The book's table, in percent.
#[test]
fn more_gpus_as_expected() {
    let seconds = TOKENS / 379_000.0;
    // One host; hosts of 8 GPUs with a network of 50 GB/s for each GPU, of which a ring reaches 80 %; one of 12.5 GB/s for each host. A ring
    // in a host has 14 steps of 3 microseconds; trees of hosts have two messages of 15 microseconds for each doubling.
    let latency = |hosts: f64| 42e-6 + 30e-6 * hosts.log2();
    let rows = [
        ("2, one host", 2, NVLINK, 30e-6),
        ("4, one host", 4, NVLINK, 30e-6),
        ("8, one host", 8, NVLINK, latency(1.0)),
        ("64, fast network", 64, 8.0 * 40e9, latency(8.0)),
        ("1,024, fast network", 1024, 8.0 * 40e9, latency(128.0)),
        ("64, slow network", 64, 10e9, latency(8.0)),
        ("1,024, slow network", 1024, 10e9, latency(128.0)),
    ];
    let found =
        rows.map(|(name, ranks, bandwidth, latency)| (name, share(seconds, ranks, bandwidth.min(NVLINK), latency)));
    found.iter().for_each(|(name, share)| println!("{name}: {share:.1} %"));
    let near = |i: usize, percent: f64| (found[i].1 - percent).abs() < 0.1;
    for (i, percent) in EXPECTED.iter().enumerate() {
        assert!(near(i, *percent), "{}: {:.1} %, the book says {percent}", found[i].0, found[i].1);
    }
}

const EXPECTED: [f64; 7] = [95.4, 94.3, 93.5, 91.7, 90.0, 32.2, 31.4];
