import { render } from "preact";
import { startTheme } from "./core/theme";
import { App } from "./frame/app";
import "./styles/index.css";

startTheme();
const root = document.getElementById("app");
if (root) {
  render(<App />, root);
}
