// Light and dark: colours of the style sheet for what is drawn on canvases, and data's colours kept legible on both.

const darkQuery = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => darkQuery.matches;
export const onTheme = (listener) => darkQuery.addEventListener("change", listener);
export const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const [DIM, BRIGHT] = [0.165, 0.245]; // 4.5 : 1 beside the backgrounds of the scene
const scratchColour = new THREE.Color();
const scratchHsl = { h: 0, s: 0, l: 0 };

// The colour itself in the light; in the dark, lightened until it stands out.
export function legible(colour) {
  scratchColour.set(colour).getHSL(scratchHsl, THREE.SRGBColorSpace);
  if (isDark())
    scratchColour.setHSL(scratchHsl.h, Math.min(scratchHsl.s, 0.75), Math.max(scratchHsl.l, 0.56), THREE.SRGBColorSpace);
  return `#${scratchColour.getHexString(THREE.SRGBColorSpace)}`;
}

// The colour for words: lighter in the dark and darker in the light, until its contrast with the background is that of text.
export function readable(colour) {
  scratchColour.set(legible(colour)).getHSL(scratchHsl, THREE.SRGBColorSpace);
  const brightness = () => 0.2126 * scratchColour.r + 0.7152 * scratchColour.g + 0.0722 * scratchColour.b; // linear
  for (let { h, s, l } = scratchHsl; isDark() ? brightness() < BRIGHT : brightness() > DIM; )
    scratchColour.setHSL(h, s, (l += isDark() ? 0.02 : -0.02), THREE.SRGBColorSpace);
  return `#${scratchColour.getHexString(THREE.SRGBColorSpace)}`;
}
