// The live feed of a served engine: one stream while the view is visible, opened again if it breaks off.

import { useEffect, useMemo, useRef, useState } from "page/dom.js";
import { EngineState } from "page/engine_state.js";

const RETRIES = [500, 1000, 2000, 5000, 10000]; // milliseconds
const IDLE = 250; // milliseconds between updates of rates that fall while no event arrives
const FALLS = 4; // seconds after which they are 0

/** Return whether the document is visible. */
function useSeen() {
  const [seen, setSeen] = useState(() => document.visibilityState === "visible");
  useEffect(() => {
    const look = () => setSeen(document.visibilityState === "visible");
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return seen;
}

/**
 * Return { engine, revision, idle, trouble }: the engine, updated while `active`. trouble: why it is not, "" for none.
 */
export function useLive(source, active) {
  const engine = useMemo(() => new EngineState(), []);
  const [revision, setRevision] = useState(0);
  const [trouble, setTrouble] = useState("");
  const heard = useRef(performance.now());
  const seen = useSeen() && active;
  useEffect(() => {
    if (!seen) return undefined;
    const stop = new AbortController();
    let planned = 0;
    const draw = () => {
      planned = 0;
      setRevision((count) => count + 1);
    };
    const take = (told) => {
      engine.take(told);
      heard.current = performance.now();
      planned ||= requestAnimationFrame(draw);
    };
    listen(source, take, setTrouble, stop.signal);
    const timer = setInterval(() => performance.now() - heard.current < FALLS * 1000 && draw(), IDLE);
    return () => {
      stop.abort();
      clearInterval(timer);
      cancelAnimationFrame(planned);
    };
  }, [seen]);
  return { engine, revision, idle: (performance.now() - heard.current) / 1000, trouble };
}

/** Take the server's events until the signal. Each stream begins with a snapshot. */
async function listen(source, take, setTrouble, signal) {
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      for await (const told of source.events("v1/engine/events", undefined, { signal })) {
        tries = 0;
        setTrouble("");
        take(told);
      }
      setTrouble("The server has ended the stream.");
    } catch (error) {
      if (signal.aborted) return;
      setTrouble(error.message);
      if (error.status === 401) return; // the page asks for another key
    }
    await pause(RETRIES[Math.min(tries, RETRIES.length - 1)], signal);
  }
}

function pause(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done();
    });
  });
}
