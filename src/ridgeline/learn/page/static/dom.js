// Preact and htm, with which tabs draw. A text in html`...` becomes text, never markup.

export {
  Component,
  h,
  html,
  render,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "page/vendored/htm/standalone.module.js";
