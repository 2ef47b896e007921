// Which plot a card shows: chosen by its title, remembered in this tab, also while a system does not have it.

const PREFIX = "dalembert studio plot: ";
const remembered = new Map(); // where the browser keeps nothing for a tab (an exported page, say) the page itself does

function recall(key) {
  try {
    return sessionStorage.getItem(PREFIX + key) ?? remembered.get(key);
  } catch {
    return remembered.get(key);
  }
}

export function rememberPlot(key, title) {
  remembered.set(key, title);
  try {
    sessionStorage.setItem(PREFIX + key, title);
  } catch {
    // remembered above
  }
}

// [{key, plots, chosen}], one a card: what moves comes first, then what should be kept, on as many cards as there is room for.
export function plotCards(plots, roomForKept) {
  const cards = (group, count) => {
    const own = plots.filter((plot) => plot.group === group);
    const taken = new Set(); // nothing is shown twice unless somebody wants it
    return own.slice(0, count).map((usual, k) => {
      const key = k ? `${group} ${k + 1}` : group;
      const chosen = own.find(({ title }) => title === recall(key)) ?? [usual, ...own].find((plot) => !taken.has(plot));
      taken.add(chosen);
      return { key, plots: own, chosen };
    });
  };
  return [...cards("motion", 1), ...cards("kept", roomForKept)];
}
