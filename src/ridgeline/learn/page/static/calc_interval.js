// Predicted figures with the interval in which 8 of 10 measurements of such cases lie.

import { html } from "page/dom.js";
import { cost_interval, rate_interval, time_interval } from "page/interval_formulas.js";
import { say_seconds, three_digits } from "page/numbers.js";

/** Show an interval, in which a line may end after the lower end, but not before the unit. */
const Interval = (text) => html` <span class="interval">${text.replace(/ (\p{L}+\])$/u, "\u00a0$1")}</span>`;

/** of: an interval of the Setting; next, the expected value and the physical floor, at which the interval ends. */
export const timeWith = (of, { expected, floor }) => html`${say_seconds(expected)}${Interval(time_interval(of, expected, floor))}`;
export const rateWith = (of, { expected, floor }) => html`${three_digits(expected)}${Interval(rate_interval(of, expected, floor))}`;
export const costWith = (of, { expected, floor }) => html`$${three_digits(expected)}${Interval(cost_interval(of, expected, floor))}`;
