// Uses the page, in the page, and writes what came of it where the test reads it.
(async () => {
  const steps = {};
  const settle = () => new Promise((done) => setTimeout(done, 100));
  const $ = (selector) => document.querySelector(selector);
  const rows = () => [...document.querySelectorAll("#table tbody th button")].map((button) => button.dataset.id);
  const dialog = $("dialog");
  try {
    $("[data-sort=bounds]").click();
    steps.sorted = [rows()[0], location.hash, document.activeElement.dataset.sort];
    $("[data-sort=bounds]").click();
    $("[data-sort=bounds]").click();
    steps.unsorted = [rows()[0], location.hash];
    const q = $("input[name=q]");
    q.value = "topk";
    q.dispatchEvent(new Event("input", { bubbles: true }));
    steps.filtered = [rows().length, location.hash];
    const cell = $("[data-id='kernel topk cpu f32']");
    cell.focus();
    cell.click();
    steps.opened = [dialog.open, dialog.contains(document.activeElement), $("#details-title").textContent, location.hash];
    $("#details .copy").click();
    // The clipboard answers when it likes.
    for (let i = 0; i < 100 && $("#details .copy").textContent === "Copy"; i++) await settle();
    steps.copied = [$("#details .copy").textContent, getSelection().toString()];
    $("#details button[aria-label=Close]").click();
    steps.closed = [dialog.open, document.activeElement.dataset.id, location.hash];
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press("ArrowRight");
    steps.right = [document.activeElement.dataset.id, document.querySelectorAll("#map [tabindex='0']").length];
    press("ArrowLeft");
    press("ArrowLeft");
    press("ArrowLeft");
    steps.left = document.activeElement.dataset.id;
    document.activeElement.click();
    const escaped = new Event("cancel", { cancelable: true });
    dialog.dispatchEvent(escaped);
    steps.escape = [escaped.defaultPrevented, dialog.open, document.activeElement.dataset.id, location.hash];
    document.activeElement.click();
    history.back();
    await settle();
    steps.back = [dialog.open, document.activeElement.dataset.id, location.hash];
    $("button[type=reset]").click();
    await settle();
    steps.reset = [q.value, location.hash, rows().length];
    location.hash = "show=failed";
    await settle();
    steps.linked = [$("select[name=show]").value, rows().length];
    steps.elements = document.querySelectorAll("img, b:not(#legend b)").length;
    steps.wide = document.documentElement.scrollWidth > innerWidth;
  } catch (error) {
    steps.error = error.stack;
  }
  document.body.dataset.steps = encodeURIComponent(JSON.stringify(steps));
})();
