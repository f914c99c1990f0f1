// The icons: small line drawings in the colour of the text beside them.
import { html } from "./preact.js";

/** On a grid of 16 by 16, drawn as lines 1.5 wide; what is in `SOLID` is filled instead. */
const DRAWINGS = {
  auto: "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12zM8 2.5v11M9.6 3v10M11.2 4v8M12.8 6v4",
  branch: `M4.5 5.5v5M4.5 5.5a1.75 1.75 0 1 0 0-3.5a1.75 1.75 0 0 0 0 3.5zM4.5 14a1.75 1.75 0 1 0 0-3.5
    a1.75 1.75 0 0 0 0 3.5zM11.5 6.5a1.75 1.75 0 1 0 0-3.5a1.75 1.75 0 0 0 0 3.5zM11.5 6.5
    c0 2.5-2 3-4 3.2S4.5 10.5 4.5 10.5`,
  check: "M3 8.5l3.5 3.5L13 4.5",
  chevron: "M4 6l4 4l4-4",
  close: "M4 4l8 8M12 4l-8 8",
  copy: `M6.5 5.5h5a1.5 1.5 0 0 1 1.5 1.5v5a1.5 1.5 0 0 1-1.5 1.5h-5A1.5 1.5 0 0 1 5 12V7
    a1.5 1.5 0 0 1 1.5-1.5zM3 10V4a1.5 1.5 0 0 1 1.5-1.5h5.5`,
  down: "M8 2.5v11M3.5 9L8 13.5L12.5 9",
  download: "M8 2.5v7.5M4.75 7L8 10.25L11.25 7M3 13.5h10",
  left: "M10 3.5L5.5 8l4.5 4.5",
  link: `M6.6 9.4a2.75 2.75 0 0 0 3.9 0l2.2-2.2a2.75 2.75 0 0 0-3.9-3.9l-.8.8M9.4 6.6a2.75 2.75 0 0 0-3.9 0
    L3.3 8.8a2.75 2.75 0 0 0 3.9 3.9l.8-.8`,
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  moon: "M13 9.6A5.5 5.5 0 0 1 6.4 3a5.5 5.5 0 1 0 6.6 6.6z",
  more: `M4.5 8a1.2 1.2 0 1 0-2.4 0a1.2 1.2 0 0 0 2.4 0zM9.2 8a1.2 1.2 0 1 0-2.4 0a1.2 1.2 0 0 0 2.4 0z
    M13.9 8a1.2 1.2 0 1 0-2.4 0a1.2 1.2 0 0 0 2.4 0z`,
  paperclip: `M13 7.3l-5.3 5.3a3.2 3.2 0 0 1-4.5-4.5l5.4-5.4a2.1 2.1 0 0 1 3 3L6.3 11a1.05 1.05 0 0 1-1.5-1.5
    l4.8-4.8`,
  pause: "M4 3h2.75v10H4zM9.25 3H12v10H9.25z",
  pencil: "M3 13l.6-2.8l7-7a1.3 1.3 0 0 1 1.8 0l.4.4a1.3 1.3 0 0 1 0 1.8l-7 7zM9.4 4.4l2.2 2.2",
  pin: "M8 10v4M5 2.5h6M6 2.5v4L4 9.5h8l-2-3v-4",
  play: "M4.5 2.8v10.4a.6.6 0 0 0 .9.5l8-5.2a.6.6 0 0 0 0-1l-8-5.2a.6.6 0 0 0-.9.5z",
  plus: "M8 3v10M3 8h10",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  right: "M6 3.5L10.5 8L6 12.5",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9a4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2",
  send: "M8 13.5v-11M3.5 7L8 2.5L12.5 7",
  settings: `M2.5 5h5.75M11.75 5h1.75M10 6.75a1.75 1.75 0 1 0 0-3.5a1.75 1.75 0 0 0 0 3.5zM2.5 11h1.75M7.75 11
    h5.75M6 12.75a1.75 1.75 0 1 0 0-3.5a1.75 1.75 0 0 0 0 3.5z`,
  stop: "M5 3.5h6A1.5 1.5 0 0 1 12.5 5v6a1.5 1.5 0 0 1-1.5 1.5H5A1.5 1.5 0 0 1 3.5 11V5A1.5 1.5 0 0 1 5 3.5z",
  sun: `M8 10.75a2.75 2.75 0 1 0 0-5.5a2.75 2.75 0 0 0 0 5.5zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7
    M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7`,
  trash: `M2.5 4.25h11M6 4V3a.75.75 0 0 1 .75-.75h2.5A.75.75 0 0 1 10 3v1M4 4.5l.5 8a1.25 1.25 0 0 0 1.25 1.2
    h4.5a1.25 1.25 0 0 0 1.25-1.2l.5-8M6.7 7v4M9.3 7v4`,
  upload: "M8 10.25V2.75M4.75 5.75L8 2.5l3.25 3.25M3 13.5h10",
};
const SOLID = new Set(["more", "pause", "play", "stop"]);

/** One icon. It says nothing to a screen reader: the control that it stands in carries the name. */
export function Icon({ name, size = 16 }) {
  const solid = SOLID.has(name);
  return html`<svg class="sign" viewBox="0 0 16 16" width=${size} height=${size} aria-hidden="true"
    fill=${solid ? "currentColor" : "none"} stroke=${solid ? "none" : "currentColor"} stroke-width="1.5"
    stroke-linecap="round" stroke-linejoin="round"><path d=${DRAWINGS[name]} /></svg>`;
}
