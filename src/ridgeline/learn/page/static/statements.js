// Statements of teaching texts, next to the figures of the cost model for the same case, and why they differ. Pure
// functions.
//
// A statement is {id, text, find, ledger, why, state, compared}: find(setting) returns the figures, and ledger(figures)
// describes them. state: the case, to which the page can be set. compared: a second case, which is the second argument of
// find. A statement without a state needs no table: with find it is arithmetic, without it a fact.
//
//   GROUPS                            [{title, statements}]
//   statesOf(statement)               the states whose tables it needs
//   figuresOf(statement, tables, all) its figures. tables: those of its states, in order
//   sourceOf(statement)               the origin of the figures, in words

import { settingOf } from "page/calc_case.js";
import { KEYS_AND_VALUES, MODELS } from "page/statements_models.js";
import { MANY_USERS, ONE_USER } from "page/statements_steps.js";
import { PICTURES, WORDS } from "page/statements_words.js";

export const GROUPS = [
  { title: "One user", statements: ONE_USER },
  { title: "Many users", statements: MANY_USERS },
  { title: "Keys and values", statements: KEYS_AND_VALUES },
  { title: "Models and their configs", statements: MODELS },
  { title: "Tokens and probabilities", statements: WORDS },
  { title: "Images", statements: PICTURES },
];

export const statesOf = ({ state, compared }) => [state, compared].filter(Boolean);

export function figuresOf(statement, tables, all) {
  const states = statesOf(statement);
  return statement.find?.(...states.map((state, at) => settingOf(tables[at], all, state)));
}

export function sourceOf({ state, find }) {
  if (state) return "from the model's table";
  return find ? "arithmetic" : "a fact";
}
