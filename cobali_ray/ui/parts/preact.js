// The vendored view library, which every other module imports from here.
export {
  html,
  render,
  useState,
  useEffect,
  useLayoutEffect,
  useRef,
  useMemo,
} from "../vendor/htm-preact-3.1.1.js";
