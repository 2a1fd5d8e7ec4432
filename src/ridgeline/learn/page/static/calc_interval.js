// Predicted figures with the interval in which 8 of 10 measurements of such cases lie.

import { html } from "page/dom.js";
import { cost_interval, rate_interval, time_interval } from "page/interval_formulas.js";
import { say_seconds, three_digits } from "page/numbers.js";

/** Show an interval, in which a line may end after the lower end, but not before the unit. */
const Interval = (text) => html` <span class="interval">${text.replace(/ (\p{L}+\])$/u, "\u00a0$1")}</span>`;

/** of: an interval of the Setting. */
export const timeWith = (of, seconds) => html`${say_seconds(seconds)}${Interval(time_interval(of, seconds))}`;
export const rateWith = (of, rate) => html`${three_digits(rate)}${Interval(rate_interval(of, rate))}`;
export const costWith = (of, dollars) => html`$${three_digits(dollars)}${Interval(cost_interval(of, dollars))}`;
