// The data of the calculator: cards, models, and the tables of models that were asked for.

import { useCallback, useEffect, useRef, useState } from "page/dom.js";
import { openCards, openTable } from "page/price.js";
import { tableName } from "page/source.js";

/** {cards, models, error}: those that there are, null until they are read. models: of models.json. */
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

/** A function of a state that gives its table, or undefined until it is read, then {error} where there is none; another
 * function once there is one more. */
export function useTables(source) {
  const kept = useRef(new Map());
  const [count, show] = useState(0);
  return useCallback((state) => {
    const name = nameOf(state);
    if (!kept.current.has(name)) {
      kept.current.set(name, undefined);
      source
        .data(name)
        .then((data) => openTable(data), (error) => error)
        .catch((error) => error)
        .then((made) => {
          kept.current.set(name, made instanceof Error ? { error: made.message } : made);
          show((before) => before + 1);
        });
    }
    return kept.current.get(name);
  }, [count]);
}
