// What teaching texts say, beside what the ledger says of the same case, and why they differ. Pure.
//
// A statement is {id, text, find, ledger, why, state, beside}: find(setting) gives the figures that ledger(figures) says in
// words. state: the case that it is about, which the page can be set to; beside: another to compare with, which find takes
// second. One without a state has no table to be computed from: with find it is arithmetic, without it a fact.
//
//   GROUPS                            [{title, statements}]
//   statesOf(statement)               states whose tables it needs
//   figuresOf(statement, tables, all) its figures. tables: of those states, in their order
//   sourceOf(statement)               where they are from, in words

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

export const statesOf = ({ state, beside }) => [state, beside].filter(Boolean);

export function figuresOf(statement, tables, all) {
  const states = statesOf(statement);
  return statement.find?.(...states.map((state, at) => settingOf(tables[at], all, state)));
}

export function sourceOf({ state, find }) {
  if (state) return "from the model's table";
  return find ? "arithmetic" : "a fact";
}
