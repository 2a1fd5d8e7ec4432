// What there is to show: the models of a server, or the data of a file. Tabs say by it whether they have something.

/** Of a file, or of a server that answers. Throws RequestError. */
export async function readContext(source) {
  if (!source.served) return { served: false, models: [], names: source.names() };
  const { data } = await source.get("v1/models");
  return { served: true, models: data, names: [] };
}

/** The models that answer a route, such as "/v1/chat/completions". */
export function modelsOf(context, route) {
  return context.models.filter((model) => model.routes?.includes(route));
}

/** What a server that cannot answer yet says of itself, in words; null where it does not even say that. */
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
