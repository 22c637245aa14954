// Drives a headless browser: [[action, value], ...] where `open` goes to a URL, `see` waits for a text and `click` clicks
// what has a text or a selector. Answers {pages: the text after each step, problems: what the browser complained of}.
import { args, load, say } from './kit.mjs';

const { chromium } = load('playwright-core');
const [executablePath, steps] = args;
const browser = await chromium.launch({
  executablePath,
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
  ],
});
const page = await browser.newPage();
page.setDefaultTimeout(15_000);
const problems = [];
// bull-board wants fonts from the internet; a test does not go there.
await page.route((url) => url.hostname !== '127.0.0.1', (route) => route.fulfill({ status: 200, body: '' }));
page.on('console', (message) => message.type() === 'error' && problems.push(`console: ${message.text()}`));
page.on('pageerror', (error) => problems.push(`page: ${error.message}`));
page.on('response', (got) => got.status() >= 400 && problems.push(`${got.status()}: ${got.url()}`));
const act = {
  open: (url) => page.goto(url, { waitUntil: 'domcontentloaded' }),
  see: (text) => page.waitForFunction((wanted) => document.body.innerText.includes(wanted), text),
  click: (selector) => page.locator(selector).first().click(),
};
const pages = [];
for (const [action, value] of steps) {
  try {
    await act[action](value);
  } catch (error) {
    problems.push(`${action} ${value}: ${error.message}`);
    break;
  } finally {
    pages.push(await page.locator('body').innerText());
  }
}
await browser.close();
say({ pages, problems });
process.exit(0);
