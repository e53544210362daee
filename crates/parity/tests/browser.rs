//! The page in a browser: headless Chromium loads it, and what it made of it is looked at, `browser::cells`.
//!
//! A machine without Chromium ignores this; `ISOGRAD_REQUIRE=chromium` makes it a failure. The pages and the pictures stay in
//! target/tmp/browser.

use isograd_parity::{Check, DeviceRun, Extent, Finding, Options, Outcome, Report, Worst, html, kernels, run};
use libtest_mimic::{Arguments, Failed, Trial};
use regex::Regex;
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::slice::from_ref;
use std::sync::{Arc, LazyLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// What would be an element, or the end of one, if it were read as HTML.
const TAGS: &str =
    "<img src=x onerror=\"document.title='broken'\"> & 'more' </script><script>document.title='broken'</script>";
/// An op of this name.
const ODD: &str = "<b>odd</b> \"op\"";

fn main() {
    let arguments = Arguments::from_args();
    let trials = match Browser::find() {
        Some(browser) => trials(browser),
        None => {
            let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|name| name.trim() == "chromium");
            let missing = || Err(Failed::from(format!("there is none of {}", PROGRAMS.join(", "))));
            vec![Trial::test("browser::chromium", missing).with_ignored_flag(!is_required)]
        }
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(browser: Browser) -> Vec<Trial> {
    let browser = Arc::new(browser);
    let trial = |name: &'static str, run: fn(&Browser)| {
        let browser = browser.clone();
        Trial::test(format!("browser::{name}"), move || {
            run(&browser);
            Ok(())
        })
    };
    vec![
        trial("summary", summary),
        trial("cells", cells),
        trial("rows", rows),
        trial("filter", filter),
        trial("details", details),
        trial("clicks_and_keys", clicks_and_keys),
        trial("several_runs", several_runs),
        trial("pictures", pictures),
    ]
}

/// Three ops on the CPU, and beside them what a CPU does not give: failures, infinite errors, and names that need care.
static REPORT: LazyLock<Report> = LazyLock::new(|| {
    let devices = vec!["cpu".parse().unwrap()];
    let filter = Some(Regex::new("^(gelu|softmax|topk)$").unwrap());
    let options =
        Options { devices, filter, extent: Extent::Quick, seed: u64::MAX, cases: Some(4), ..Options::default() };
    let mut report = run(&options, &mut |_| ()).unwrap();
    assert!(report.passed(), "{}", report.text());
    for name in ["cuda:0", "opencl:0", "mine:0"] {
        let text = || format!("{name} of {TAGS}");
        report.devices.push(DeviceRun {
            name: name.into(),
            hardware: text(),
            driver: text(),
            has_f64: false,
            bandwidth: Some(3e12),
        });
    }
    let finding = |op: &str, device: &str, dtype: &str, check, outcome, [bounds, ulps]: [f64; 2]| Finding {
        op: op.into(),
        device: device.into(),
        dtype: dtype.into(),
        check,
        outcome,
        cases: 3,
        worst: Some(Worst { bounds, ulps, case: "2x3:7".into() }),
        seconds: 0.25,
        folder: None,
    };
    let failed = || Outcome::Failed(TAGS.into());
    report.findings.extend([
        finding("gelu", "cuda:0", "f16", Check::Forward, failed(), [52.4, 1e9]),
        finding("gelu", "cuda:0", "f16", Check::Gradients, Outcome::Passed, [0.25, 1.0]),
        finding("topk", "cuda:0", "f32", Check::Special, failed(), [f64::INFINITY, f64::NAN]),
        finding(ODD, "mine:0", "bf16", Check::Forward, Outcome::Passed, [0.5, 2.0]),
    ]);
    let skipped = Outcome::Skipped("the device has no f64".into());
    report
        .findings
        .push(Finding { worst: None, ..finding("softmax", "opencl:0", "f64", Check::Golden, skipped, [0.0; 2]) });
    report
});

struct Browser {
    program: &'static str,
    folder: PathBuf,
}

impl Browser {
    fn find() -> Option<Browser> {
        let works = |program: &&str| {
            let silent = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            silent.is_ok_and(|status| status.success())
        };
        let program = PROGRAMS.into_iter().find(works)?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
        fs::create_dir_all(&folder).unwrap();
        Some(Browser { program, folder })
    }

    /// Opens a page, at what the address has behind it, and returns what the browser printed.
    fn open(&self, name: &str, page: &str, hash: &str, options: &[&str]) -> String {
        let path = |ending: &str| self.folder.join(format!("{name}{ending}"));
        let (file, printed, said) = (path(".html"), path(".out"), path(".err"));
        fs::write(&file, page).unwrap();
        let profile = tempfile::tempdir().unwrap();
        // The pages are ours, and root has no sandbox. With virtual time it waits for what the page's script waits for.
        let mut command = Command::new(self.program);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--hide-scrollbars", "--virtual-time-budget=5000"]).args(options);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg(format!("file://{}#{hash}", file.display()));
        let (to_printed, to_said) = (File::create(&printed).unwrap(), File::create(&said).unwrap());
        let mut child = command.stdin(Stdio::null()).stdout(to_printed).stderr(to_said).spawn().unwrap();
        let started = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if started.elapsed() > Duration::from_secs(120) => {
                    child.kill().unwrap();
                    break child.wait().unwrap();
                }
                None => sleep(Duration::from_millis(20)),
            }
        };
        assert!(status.success(), "{} ended with {status}: {}", self.program, fs::read_to_string(said).unwrap());
        fs::read_to_string(printed).unwrap()
    }

    /// The elements of the report's page.
    fn elements(&self, name: &str, hash: &str) -> Elements {
        Elements(self.open(name, &html(from_ref(&*REPORT)), hash, &["--dump-dom"]))
    }
}

/// A page as its script has made it.
struct Elements(String);

impl Elements {
    /// What is in the element that begins so.
    #[track_caller]
    fn within(&self, start: &str, end: &str) -> &str {
        let found = self.0.split_once(start).and_then(|(_, rest)| rest.split_once(end));
        found.unwrap_or_else(|| panic!("there is no {start} .. {end} in {}", self.0)).0
    }

    #[track_caller]
    fn map(&self) -> &str {
        self.within("id=\"map\">", "</table>")
    }

    /// The ops of the table's rows, with device and dtype, as they are shown.
    #[track_caller]
    fn rows(&self) -> Vec<String> {
        ids(self.within("id=\"table\">", "</table>"), "row ")
    }

    /// The class and the text of a cell.
    #[track_caller]
    fn cell(&self, kernel: &str, backend: &str, dtype: &str) -> [String; 2] {
        let id = format!("kernel {kernel} {backend} {dtype}");
        let cell =
            Regex::new("class=\"([^\"]*)\" data-id=\"([^\"]*)\"[^\n]*? tabindex=\"-?[0-9]\">(.*?)</button>").unwrap();
        let found = cell.captures_iter(self.map()).find(|found| unescaped(&found[2]) == id);
        let found = found.unwrap_or_else(|| panic!("there is no cell {id} in {}", self.map()));
        [found[1].to_string(), unescaped(&found[3])]
    }

    fn cells(&self) -> Vec<String> {
        ids(self.map(), "kernel ")
    }
}

fn ids(html: &str, start: &str) -> Vec<String> {
    let id = Regex::new(&format!("data-id=\"{start}([^\"]*)\"")).unwrap();
    id.captures_iter(html).map(|found| unescaped(&found[1])).collect()
}

/// Text as the browser prints it between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn unescaped(html: &str) -> String {
    html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

fn summary(browser: &Browser) {
    let page = browser.elements("summary", "");
    let [passed, failed, skipped, _] = REPORT.counts();
    assert_eq!(failed, 2);
    assert_eq!(page.within("<title>", "</title>"), "isograd parity: 2 failed");
    let counts = format!("<span class=\"bad\">✗ 2 failed</span>, {passed} passed, {skipped} skipped");
    assert_eq!(page.within("<p id=\"counts\">", "</p>"), counts);
    let verdict = page.within("<p id=\"verdict\" role=\"status\" class=\"failed\">", "</p>");
    let numbers = Regex::new("^✗ Failed: ([0-9]+) of ([0-9]+) kernels are right$").unwrap();
    let numbers = numbers.captures(verdict).unwrap_or_else(|| panic!("{verdict}"));
    let [right, all] = [1, 2].map(|i| numbers[i].parse::<usize>().unwrap());
    assert!(0 < right && right < all, "{verdict}");
    let passed =
        Report { findings: REPORT.findings.iter().filter(|f| !f.has_failed()).cloned().collect(), ..REPORT.clone() };
    let page = Elements(browser.open("passed", &html(&[passed]), "", &["--dump-dom"]));
    assert!(page.within("class=\"passed\">", "</p>").starts_with("✓ Passed: "), "{verdict}");
    let runs = page.within("<div id=\"runs\">", "</div>");
    assert_eq!(runs.matches("<article>").count(), 4);
    let run = &REPORT.devices[0];
    let facts = [
        "<h3>cpu</h3>".to_string(),
        escaped(&run.hardware),
        escaped(&run.driver),
        escaped(&REPORT.devices[1].hardware),
        "<dt>copies</dt><dd>3000.0 GB/s</dd>".into(),
        format!("<dt>date</dt><dd>{} UTC</dd>", REPORT.date),
        format!("<dt>version</dt><dd>{}</dd>", REPORT.version),
        "<dt>extent</dt><dd>quick</dd>".into(),
        format!("<dt>seed</dt><dd>{}</dd>", u64::MAX),
    ];
    facts.iter().for_each(|fact| assert!(runs.contains(fact), "{fact} is not in {runs}"));
    let unfinished = Report { complete: false, ..REPORT.clone() };
    let page = Elements(browser.open("unfinished", &html(&[unfinished]), "", &["--dump-dom"]));
    assert!(page.within("<div id=\"runs\">", "</div>").contains("<span class=\"bad\">quick, did not end</span>"));
}

fn cells(browser: &Browser) {
    let page = browser.elements("cells", "");
    // Of the findings, those that are of the kernel and not of its gradient alone.
    let of = |op: &str, gradient: &[Check], dtype: &str| {
        let is_of = |f: &&Finding| f.op == op && f.device == "cpu" && f.dtype == dtype && !gradient.contains(&f.check);
        REPORT.findings.iter().filter(is_of).filter_map(|f| f.worst.as_ref()).map(|w| w.bounds).fold(0.0, f64::max)
    };
    let gradients = [Check::Gradients, Check::Twice, Check::Gradcheck, Check::Gradgradcheck];
    for dtype in ["f64", "f32", "f16", "bf16"] {
        let bounds = of("gelu", &gradients, dtype);
        let level = [0.0, 0.25, 0.5, 0.75].iter().filter(|&&from| bounds > 0.0 && bounds >= from).count();
        let text = match bounds {
            0.0 => "0".to_string(),
            _ if bounds < 0.005 => "<0.01".to_string(),
            _ => format!("{bounds:.2}"),
        };
        assert_eq!(page.cell("gelu", "cpu", dtype), [format!("l{level}"), text], "{dtype}");
    }
    assert!(of("gelu", &gradients, "f32") > 0.0);
    assert_eq!(page.cell("gelu", "cuda", "f16"), ["failed", "✗ 52.40"]);
    assert_eq!(page.cell("gelu_backward", "cuda", "f16"), ["l2", "0.25"]);
    assert_eq!(page.cell("topk", "cuda", "f32"), ["failed", "✗ ∞"]);
    assert_eq!(page.cell("softmax", "opencl", "f64"), ["skipped", "skip"]);
    assert_eq!(page.cell(ODD, "mine", "bf16"), ["l3", "0.50"]);
    // Each kernel that an op stands for has a cell for each dtype; no other has one.
    assert_eq!(page.cells().iter().filter(|id| id.ends_with(" cpu f32")).count(), 6, "{:?}", page.cells());
    let heads = Regex::new("scope=\"colgroup\" colspan=\"([0-9])\">([^<]*)<").unwrap();
    let heads: Vec<String> =
        heads.captures_iter(page.map()).map(|found| format!("{} {}", &found[2], &found[1])).collect();
    assert_eq!(heads, ["CPU 4", "CUDA 2", "OpenCL 1", "mine 1"]);
    let planned = kernels::planned().next();
    assert_eq!(page.map().contains("Planned, no op has it yet: "), planned.is_some());
    assert!(page.map().contains("Not run: relu, "));
}

fn rows(browser: &Browser) {
    let all = browser.elements("rows", "").rows();
    let mut expected: Vec<String> =
        REPORT.findings.iter().map(|f| format!("{} {} {}", f.op, f.device, f.dtype)).collect();
    expected.dedup();
    assert_eq!(all, expected);
    let first = |sort: &str| browser.elements("rows", &format!("sort={sort}")).rows()[..2].to_vec();
    assert_eq!(first("-bounds"), ["topk cuda:0 f32", "gelu cuda:0 f16"]);
    assert_eq!(first("-ulps"), ["topk cuda:0 f32", "gelu cuda:0 f16"]);
    assert_eq!(first("-checks"), ["gelu cuda:0 f16", "topk cuda:0 f32"]);
    assert_eq!(first("-op"), ["topk cpu f64", "topk cpu f32"]);
    let page = browser.elements("rows", "sort=-device");
    assert!(page.rows()[0].ends_with("opencl:0 f64"), "{:?}", page.rows());
    let head = page.within("aria-sort=\"descending\"", "</th>");
    assert!(head.contains("data-sort=\"device\""), "{head}");
}

fn filter(browser: &Browser) {
    let elements = |hash: &str| browser.elements("filter", hash);
    let failed = elements("show=failed");
    assert_eq!(failed.rows(), ["gelu cuda:0 f16", "topk cuda:0 f32"]);
    assert_eq!(failed.cells(), ["gelu cuda f16", "topk cuda f32"]);
    assert_eq!(failed.within("<output id=\"count\">", "</output>"), "2 checks in 2 rows");
    let skipped = elements("show=skipped&device=opencl:0");
    assert_eq!(skipped.rows(), ["softmax opencl:0 f64"]);
    assert_eq!(elements("q=^gelu%24&device=cpu&dtype=f16").rows(), ["gelu cpu f16"]);
    let gradient = elements("q=gelu_backward&check=gradients&device=cuda:0");
    assert_eq!(
        (gradient.rows(), gradient.cells()),
        (vec!["gelu cuda:0 f16".into()], vec!["gelu_backward cuda f16".into()])
    );
    // What is no regular expression is looked for as it is.
    let odd = elements("q=%3Cb%3Eodd%3C/b%3E%20%22op");
    assert_eq!(odd.rows().len(), 1);
    let broken = elements("q=gelu(");
    assert_eq!(broken.rows(), [""; 0]);
    assert!(broken.0.contains("aria-invalid=\"true\"") && broken.map().contains("Nothing is left by the filter."));
}

fn details(browser: &Browser) {
    let page = browser.elements("details", "open=kernel+gelu+cuda+f16");
    let dialog = page.within("<dialog id=\"details\"", "</dialog>");
    let parts = [
        " open=\"\"".to_string(),
        ">gelu on CUDA in f16</h2>".into(),
        "<dt>check</dt><dd>forward of gelu in f16</dd>".into(),
        "<dt>outcome</dt><dd><span class=\"bad\">✗ failed</span></dd>".into(),
        "<dt>worst error</dt><dd>52.40 of its bound, 1.0e+9 ulps</dd>".into(),
        "<dt>case</dt><dd>2x3:7</dd>".into(),
        format!("<pre class=\"failed\">{}</pre>", escaped(TAGS)),
        "<code>isograd parity --device cuda:0 --repeat gelu:forward:f16:2x3:7</code>".into(),
        "<h3>1 check</h3>".into(),
    ];
    parts.iter().for_each(|part| assert!(dialog.contains(part), "{part} is not in {dialog}"));
    // A row has all checks of its op, of which the failed one is first.
    let page = browser.elements("details", "open=row+gelu+cuda:0+f16");
    let dialog = page.within("<dialog id=\"details\"", "</dialog>");
    let checks = Regex::new("<summary>([a-z]*)<").unwrap();
    let checks: Vec<&str> = checks.captures_iter(dialog).map(|found| found.get(1).unwrap().as_str()).collect();
    assert_eq!(checks, ["forward", "gradients"]);
    let page = browser.elements("details", "open=kernel+nothing+cuda+f16");
    assert!(!page.within("<dialog id=\"details\"", ">").contains("open"));
}

fn clicks_and_keys(browser: &Browser) {
    let script = format!("<script>{}</script></body>", include_str!("browser/use.js"));
    let page = html(from_ref(&*REPORT)).replace("</body>", &script);
    let page = browser.open("clicks", &page, "", &["--dump-dom", "--window-size=500,900"]);
    let steps = Elements(page).within("data-steps=\"", "\"").to_string();
    let bytes = percent_decoded(&steps);
    let mut steps: HashMap<String, Value> = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(steps.get("error"), None);
    let count = |f: &dyn Fn(&Finding) -> bool| {
        let mut rows: Vec<_> =
            { REPORT.findings.iter() }.filter(|x| f(x)).map(|x| (&x.op, &x.device, &x.dtype)).collect();
        rows.dedup();
        rows.len()
    };
    let (all, topk) = (count(&|_| true), count(&|f| f.op == "topk"));
    let mut step = |name: &str, expected: Value| assert_eq!(steps.remove(name), Some(expected), "{name}");
    let first = &REPORT.findings[0];
    step("sorted", serde_json::json!(["row topk cuda:0 f32", "#sort=-bounds", "bounds"]));
    step("unsorted", serde_json::json!([format!("row {} {} {}", first.op, first.device, first.dtype), ""]));
    step("filtered", serde_json::json!([topk, "#q=topk"]));
    let open = "#q=topk&open=kernel+topk+cpu+f32";
    step("opened", serde_json::json!([true, true, "topk on CPU in f32", open]));
    step("closed", serde_json::json!([false, "kernel topk cpu f32", "#q=topk"]));
    step("right", serde_json::json!(["kernel topk cpu f16", 1]));
    step("left", serde_json::json!("kernel topk cpu f64"));
    step("escape", serde_json::json!([true, false, "kernel topk cpu f64", "#q=topk"]));
    step("back", serde_json::json!([false, "kernel topk cpu f64", "#q=topk"]));
    step("reset", serde_json::json!(["", "", all]));
    step("linked", serde_json::json!(["failed", 2]));
    step("elements", serde_json::json!(0));
    step("wide", serde_json::json!(false));
    let copied = steps.remove("copied").unwrap();
    assert!(["Copied", "Selected"].contains(&copied[0].as_str().unwrap()), "{copied}");
    assert!(copied[1].as_str().unwrap().starts_with("isograd parity --device cpu --repeat topk:"), "{copied}");
    assert_eq!(steps.keys().collect::<Vec<_>>(), [""; 0]);
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let is_code = first == b'%';
        bytes.push(if is_code {
            u8::from_str_radix(&text[text.len() - after.len()..][..2], 16).unwrap()
        } else {
            first
        });
        rest = if is_code { &after[2..] } else { after };
    }
    bytes
}

fn several_runs(browser: &Browser) {
    let mut other = REPORT.clone();
    other.devices.truncate(1);
    other.findings.retain(|f| f.op == "gelu" && f.dtype == "f32" && f.check == Check::Forward && f.device == "cpu");
    other.findings[0].worst.as_mut().unwrap().bounds = 0.875;
    let page = html(&[REPORT.clone(), other]);
    let page = Elements(browser.open(
        "several",
        &page,
        "q=^gelu%24&dtype=f32&sort=-bounds&open=kernel+gelu+cpu+f32",
        &["--dump-dom"],
    ));
    assert_eq!(page.rows(), ["gelu cpu #2 f32", "gelu cpu #1 f32"]);
    assert_eq!(page.cell("gelu", "cpu", "f32"), ["l4", "0.88"]);
    let dialog = page.within("<dialog id=\"details\"", "</dialog>");
    assert!(dialog.contains("<dt>device</dt><dd>cpu #2, ") && dialog.contains(", gelu on cpu #1</span>"), "{dialog}");
}

type Colour = [u8; 3];

/// How many pixels of a picture have which colour, and how many there are.
fn colours(path: &Path) -> (HashMap<Colour, usize>, usize) {
    let mut decoder = png::Decoder::new(BufReader::new(File::open(path).unwrap()));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let mut colours = HashMap::new();
    for pixel in bytes[..info.buffer_size()].chunks_exact(info.color_type.samples()) {
        *colours.entry([pixel[0], pixel[1], pixel[2]]).or_default() += 1;
    }
    (colours, (info.width * info.height) as usize)
}

fn pictures(browser: &Browser) {
    let page = html(from_ref(&*REPORT));
    // Colours of the style: the page, text, a failed cell, and cells of exact and of small errors.
    let light = [[255, 255, 255], [0x1b, 0x1f, 0x24], [0xb3, 0x47, 0], [0xf2, 0xf6, 0xfb], [0xd3, 0xe3, 0xf4]];
    let dark = [[0x12, 0x16, 0x1b], [0xe4, 0xe8, 0xec], [0xff, 0x9a, 0x4d], [0x18, 0x23, 0x30], [0x1c, 0x3a, 0x5a]];
    for (name, scheme, size, expected) in [("light", 1, [1280, 1800], light), ("dark", 0, [500, 2400], dark)] {
        let picture = browser.folder.join(format!("{name}.png"));
        let _ = fs::remove_file(&picture);
        let options = [
            format!("--screenshot={}", picture.display()),
            format!("--window-size={},{}", size[0], size[1]),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        browser.open(name, &page, "", &options.each_ref().map(String::as_str));
        let (colours, pixels) = colours(&picture);
        assert_eq!(pixels, size[0] * size[1], "{name}");
        let of = |colour: &Colour| colours.get(colour).copied().unwrap_or(0);
        assert!(of(&expected[0]) > pixels / 5, "{name}: {} pixels of the background", of(&expected[0]));
        assert!(colours.values().all(|&count| count < pixels * 9 / 10), "{name} is nearly blank");
        for colour in &expected[1..] {
            assert!(of(colour) > 200, "{name}: {} pixels of {colour:02x?}", of(colour));
        }
    }
}
