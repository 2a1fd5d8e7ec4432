// The tabs, in order. Each is a module that exports `id`, `title`, `fields` (its part of the address, as in state.js),
// `available(context)` and `view`, a component. docs/page.md lists the props of a view.

import * as calculator from "page/tab_calculator.js";
import * as chat from "page/tab_chat.js";
import * as engine from "page/tab_engine.js";
import * as pictures from "page/tab_pictures.js";
import * as token from "page/tab_token.js";
import * as traffic from "page/tab_traffic.js";

export const TABS = [calculator, chat, pictures, token, engine, traffic];
