// The one door to the vendored view library; every other module asks here.
export {
  html,
  render,
  useState,
  useEffect,
  useLayoutEffect,
  useRef,
  useMemo,
} from "../vendor/htm-preact-3.1.1.js";
