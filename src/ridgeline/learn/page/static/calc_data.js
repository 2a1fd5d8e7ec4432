// The data of the calculator: cards, models, and the tables of models that were requested.

import { useCallback, useEffect, useRef, useState } from "page/dom.js";
import { openCards, openTable } from "page/price.js";
import { tableName } from "page/source.js";

/** Return {cards, models, error}; cards and models are null until they are read. models: models.json. */
export function useCatalogue(source) {
  const [found, setFound] = useState({ all: null, models: null, error: "" });
  useEffect(() => {
    Promise.all([source.data("cards.json"), source.data("models.json")]).then(
      ([cards, models]) => setFound({ all: openCards(cards), models, error: "" }),
      (error) => setFound({ all: null, models: null, error: error.message }),
    );
  }, [source]);
  return found;
}

export function nameOf({ model, weights, kv, cards }) {
  return tableName(model, { weights: weights || null, kv: kv || null, devices: cards });
}

/** The prefix of the name of a model whose config a user gave to this page. */
export const GIVEN = "./";

async function readTable(source, given, { model, ...stored }) {
  const name = nameOf({ model, ...stored });
  if (!model.startsWith(GIVEN)) return openTable(await source.data(name));
  const config = given.get(model);
  if (config === undefined) throw new Error(`${model.slice(GIVEN.length)} was opened from a file; open its config.json again`);
  return { ...openTable(await source.price(config, name)), model: model.slice(GIVEN.length), file: "config.json" };
}

/**
 * Return two functions. The first returns the table of a state, undefined until it is read, or {error} if there is
 * none. It is a new function after each new table. The second takes the text of a config, which is a model of this name
 * from then on.
 */
export function useTables(source) {
  const [kept, given] = [useRef(new Map()), useRef(new Map())];
  const [count, show] = useState(0);
  const tableOf = useCallback((state) => {
    const name = nameOf(state);
    if (!kept.current.has(name)) {
      kept.current.set(name, undefined);
      const { current } = kept;
      readTable(source, given.current, state)
        .catch((error) => ({ error: error.message }))
        .then((made) => {
          current.set(name, made);
          show((before) => before + 1);
        });
    }
    return kept.current.get(name);
  }, [count]);
  const give = useCallback((model, config) => {
    given.current.set(model, config);
    for (const name of kept.current.keys()) if (name.startsWith(tableName(model))) kept.current.delete(name);
    show((before) => before + 1);
  }, []);
  return [tableOf, give];
}
