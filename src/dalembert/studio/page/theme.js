// Light and dark: colours of the style sheet for what is drawn on canvases, and data's colours kept legible on both.

const darkQuery = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => darkQuery.matches;
export const onTheme = (listener) => darkQuery.addEventListener("change", listener);
export const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const scratchColour = new THREE.Color();
const scratchHsl = { h: 0, s: 0, l: 0 };

// The colour itself in the light; in the dark, lightened until it stands out.
export function legible(colour) {
  scratchColour.set(colour).getHSL(scratchHsl, THREE.SRGBColorSpace);
  if (isDark())
    scratchColour.setHSL(scratchHsl.h, Math.min(scratchHsl.s, 0.75), Math.max(scratchHsl.l, 0.56), THREE.SRGBColorSpace);
  return `#${scratchColour.getHexString(THREE.SRGBColorSpace)}`;
}
