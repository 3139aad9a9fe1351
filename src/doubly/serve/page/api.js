// Asking the server, and never more than one thing at a time: while an answer is on its way, only the newest wish is kept.

export async function get(path) {
  return answer(await fetch(path));
}

export async function ask(path, body) {
  return answer(await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}

async function answer(response) {
  const said = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(said.error);
  return said;
}

// A list of steps for what is wished now; it starts over as soon as something else is wished.
export function newest(steps, failed) {
  let wished = 0;
  let running = false;
  return async () => {
    wished += 1;
    if (running) return;
    running = true;
    for (let done = 0; done !== wished; ) {
      const now = wished;
      try {
        for (const step of steps) {
          if (now !== wished) break;
          await step(() => now === wished);
        }
      } catch (error) {
        failed(error);
      }
      done = now;
    }
    running = false;
  };
}
