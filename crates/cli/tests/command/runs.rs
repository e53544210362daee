//! Runs side by side.

use crate::{ISOGRAD, isograd, run, train};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

#[test]
fn runs_are_compared_in_a_table_and_on_a_page() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 2 --lr 0.01", &out.path().join("quick"));
    train("--epochs 3 --lr 0.0001", &out.path().join("inner/<slow>"));
    let page = out.path().join("runs.html");
    let runs = |folder: &std::path::Path| {
        Command::new(ISOGRAD).arg("runs").arg(folder).arg("--html").arg(&page).output().unwrap()
    };
    let output = runs(out.path());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[0].starts_with("run ") && lines[0].contains("accuracy") && lines[0].contains("lr"), "{stdout}");
    // The better run comes first. Settings that are the same are not listed.
    assert!(lines[1].starts_with("quick") && lines[1].contains("0.01"), "{stdout}");
    assert!(lines[2].starts_with("inner/<slow>") && lines[2].contains("0.0001"), "{stdout}");
    assert!(!lines[0].contains("seed"), "{stdout}");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("inner/&lt;slow&gt;") && !text.contains("<slow>"));
    assert!(text.contains("validation loss") && text.matches("<polyline").count() >= 8, "{text}");
    assert!(!text.contains("http"), "the page loads something");
    let picture = out.path().join("runs.svg");
    assert_eq!(run(&["runs", out.path().to_str().unwrap(), "--svg", picture.to_str().unwrap()]).code, Some(0));
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
    // Two losses and an accuracy of two runs, with the name of the run beside each.
    let lines = drawn.lines().filter(|line| line.contains("<polyline") && line.contains("stroke-width=\"2\"")).count();
    assert_eq!((lines, drawn.matches("\ninner/&lt;slow&gt;\n").count()), (6, 3), "{drawn}");
    assert!(drawn.contains("prefers-color-scheme: dark"), "{drawn}");
    // A folder of one run.
    let one = String::from_utf8(runs(&out.path().join("quick")).stdout).unwrap();
    assert!(one.lines().nth(1).unwrap().starts_with("quick"), "{one}");
    let none = tempfile::tempdir().unwrap();
    let refused = isograd("runs", none.path());
    assert!(!refused.stderr.is_empty());
    assert!(!runs(none.path()).status.success());
}

#[test]
fn runs_on_other_data_have_a_table_of_their_own() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a.csv", "b.csv"] {
        let rows: String = (0..40).map(|i| format!("{i}.5,{}.25\n", 3 * i)).collect();
        fs::write(data.path().join(name), format!("x,y\n{rows}")).unwrap();
        let file = data.path().join(name).display().to_string();
        let ended = isograd(&format!("train csv {file} --device cpu --epochs 1 --json"), &out.path().join(name));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    train("--epochs 1", &out.path().join("digits"));
    let all = out.path().to_str().unwrap();
    let page = out.path().join("runs.html");
    let ended = run(&["runs", all, "--html", page.to_str().unwrap()]);
    let names: Vec<&str> = ended.stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!([names[0], names[3], names[6]], ["csv a.csv", "csv b.csv", "digits"], "{}", ended.stdout);
    // A metric of one kind of data is no column of another.
    assert!(names[1].contains("mean_absolute_error") && !names[1].contains("accuracy"), "{}", ended.stdout);
    assert!(names[7].contains("accuracy") && !names[7].contains("mean_absolute_error"), "{}", ended.stdout);
    let text = fs::read_to_string(&page).unwrap();
    assert_eq!(text.matches("<h2>").count(), 3, "{text}");
}

#[test]
fn a_run_overwrites_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let train = |options: &str| {
        let arguments = format!("train digits --hidden 4 --epochs 1 --device cpu --json {options}");
        let mut command = Command::new(ISOGRAD);
        crate::Ended::from(command.args(arguments.split_whitespace()).current_dir(folder.path()).output().unwrap())
    };
    (0..3).for_each(|_| assert_eq!(train("").code, Some(0)));
    assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 3);
    let config = |name: &str| fs::read_to_string(folder.path().join("out").join(name).join("config.json")).unwrap();
    assert!(config("digits") == config("digits-2") && config("digits") == config("digits-3"));
    let refused = train("--seed 7 --out out/digits-2");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let expected = "out/digits-2 has a run: --resume out/digits-2 goes on with it, --overwrite replaces it";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    assert!(config("digits-2").contains("\"seed\":42"), "{}", config("digits-2"));
    assert_eq!(train("--seed 7 --out out/digits-2 --overwrite").code, Some(0));
    assert!(config("digits-2").contains("\"seed\":7"), "{}", config("digits-2"));
    let mut resume = Command::new(ISOGRAD);
    resume.args(["train", "digits", "--device", "cpu", "--resume", "out/digits-3", "--epochs", "2", "--json"]);
    let resumed = crate::Ended::from(resume.current_dir(folder.path()).output().unwrap()).json();
    assert_eq!(resumed["epochs"], 2);
    assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 3);
}

#[test]
fn a_run_knows_where_its_data_are() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let in_folder = |arguments: &str, folder: &std::path::Path| {
        let mut command = Command::new(ISOGRAD);
        crate::Ended::from(command.args(arguments.split_whitespace()).current_dir(folder).output().unwrap())
    };
    let rows: String = (0..40).map(|i| format!("{i}.5,{}.25\n", 3 * i)).collect();
    fs::write(folder.path().join("t.csv"), format!("x,y\n{rows}")).unwrap();
    fs::write(folder.path().join("t.txt"), "the cat sat on the mat.\n".repeat(60)).unwrap();
    let small = "--layers 1 --width 8 --heads 2 --context 8 --eval-every 2";
    for train in ["train csv t.csv --epochs 2", &format!("train text t.txt --steps 2 {small}")] {
        let ended = in_folder(&format!("{train} --device cpu --out run --overwrite --json"), folder.path());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let (run, kind) = (folder.path().join("run").display().to_string(), train.split(' ').nth(1).unwrap());
        let found = in_folder(&format!("eval {run} --device cpu --json"), elsewhere.path()).json();
        assert_eq!(found["validation_loss"], ended.json()["validation_loss"], "{found}");
        let again = in_folder(&format!("train {kind} --device cpu --resume {run} --json"), elsewhere.path());
        assert_eq!(again.json()["validation_loss"], ended.json()["validation_loss"]);
    }
}

#[test]
fn a_damaged_run_is_named_and_hides_no_other() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 1", &out.path().join("good"));
    let bad = out.path().join("bad");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("metrics.jsonl"), "{\"epoch\": ").unwrap();
    let runs = |folder: &std::path::Path| Command::new(ISOGRAD).arg("runs").arg(folder).output().unwrap();
    let output = runs(out.path());
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && stdout.lines().nth(1).unwrap().starts_with("good"), "{stdout}{stderr}");
    assert!(stderr.contains("bad/metrics.jsonl, line 1: not the results of an epoch"), "{stderr}");
    assert!(!runs(&bad).status.success());
}

/// A script for the page, which reports counts, names (which are no markup), curves outside of their pictures, and elements that are wider than
/// the window.
const LOOK: &str = "<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const within = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1
  && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
const box = (element) => element.getBoundingClientRect();
document.body.dataset.look = JSON.stringify({
  title: document.title,
  tables: all('table').map((table) => table.rows.length),
  names: all('table:first-of-type tr > td:first-child').map((cell) => cell.textContent),
  curves: all('polyline[stroke-width=\"2\"]').length,
  inside: all('polyline, circle, svg text').every((curve) => within(box(curve), box(curve.ownerSVGElement))),
  broken: all('slow').length,
  loaded: performance.getEntriesByType('resource').length,
  wide: document.documentElement.scrollWidth > innerWidth,
  dark: matchMedia('(prefers-color-scheme: dark)').matches,
  pictures: getComputedStyle(all('svg')[0]).filter,
});
</script>";

/// Skipped without Chromium, unless `ISOGRAD_REQUIRE=chromium` requires it.
#[test]
fn the_page_is_whole_in_a_browser() {
    let programs = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let works = |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    let Some(program) = programs.into_iter().find(works) else {
        let is_required = std::env::var("ISOGRAD_REQUIRE").is_ok_and(|list| list.contains("chromium"));
        assert!(!is_required, "there is none of {}", programs.join(", "));
        return;
    };
    let out = tempfile::tempdir().unwrap();
    train("--epochs 2 --lr 0.01", &out.path().join("quick"));
    train("--epochs 3 --lr 0.0001", &out.path().join("inner/<slow>"));
    let page = out.path().join("runs.html");
    assert_eq!(run(&["runs", out.path().to_str().unwrap(), "--html", page.to_str().unwrap()]).code, Some(0));
    let text = fs::read_to_string(&page).unwrap();
    let looked_at = out.path().join("looked-at.html");
    fs::write(&looked_at, text.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    let look = |options: &[&str]| -> Value {
        let mut command = Command::new(program);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--virtual-time-budget=5000", "--dump-dom"]).args(options);
        command.arg(format!("--user-data-dir={}", out.path().join("profile").display()));
        let output = command.arg(format!("file://{}", looked_at.display())).output().unwrap();
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = dom.split_once("data-look=\"").and_then(|(_, rest)| rest.split_once('"'));
        let found = found.unwrap_or_else(|| panic!("{dom}{}", String::from_utf8_lossy(&output.stderr)));
        serde_json::from_str(&found.0.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">")).unwrap()
    };
    let light = look(&["--window-size=1000,800"]);
    assert_eq!(light["title"], "isograd runs");
    assert_eq!(light["names"], json!(["quick", "inner/<slow>"]));
    assert_eq!(light["tables"][0], 3);
    // Training loss, validation loss, accuracy and learning rate of two runs.
    assert_eq!(light["curves"], 8);
    assert_eq!((&light["inside"], &light["broken"], &light["loaded"]), (&json!(true), &json!(0), &json!(0)));
    assert_eq!((&light["wide"], &light["dark"]), (&json!(false), &json!(false)));
    let dark = look(&["--window-size=1000,800", "--blink-settings=preferredColorScheme=0"]);
    assert_eq!(dark["dark"], true);
    assert_ne!(dark["pictures"], light["pictures"]);
    let narrow = look(&["--window-size=500,800"]);
    assert_eq!((&narrow["wide"], &narrow["inside"]), (&json!(false), &json!(true)));
}
