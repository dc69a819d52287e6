import { render } from "preact";
import { pauseWhenHidden } from "./core/hidden_page";
import { feed } from "./core/store";
import { startTheme } from "./core/theme";
import { App } from "./frame/app";
import "./styles/index.css";

startTheme();
pauseWhenHidden(feed);
const root = document.getElementById("app");
if (root) {
  render(<App />, root);
}
