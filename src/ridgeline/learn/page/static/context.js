// The data that the page can show: the models of a server, or the contents of a file. Tabs read it to see whether they
// have something.

/** Read the context from a file, or from a server. Throws RequestError. */
export async function readContext(source) {
  if (!source.served) return { served: false, models: [], names: source.names() };
  const { data } = await source.get("v1/models");
  return { served: true, models: data, names: [] };
}

/** Return the models that serve a route, such as "/v1/chat/completions". */
export function modelsOf(context, route) {
  return context.models.filter((model) => model.routes?.includes(route));
}

/** Return the state of a server that is not ready yet, in words, or null if it does not respond. */
export async function readHealth() {
  try {
    const { status } = await (await fetch("health", { credentials: "omit" })).json();
    return HEALTH[status] ?? null;
  } catch {
    return null;
  }
}

const HEALTH = {
  loading: "The model is being loaded.",
  ready: "The server is ready.",
  restarting: "The engine process ended unexpectedly and is being restarted.",
  draining: "The server is shutting down.",
  stalled: "The engine has not responded for a while.",
  dead: "The engine process has ended and will not restart.",
};
