/** All components of the panel. */

import "../core/router"; // every page needs it, and needs no file more for it

export { Button, type ButtonProps } from "./button";
export { Confirm, Dialog } from "./dialog";
export {
  Badge,
  Copy,
  Empty,
  Meter,
  Note,
  Problem,
  type Segment,
  textOf,
  Toast,
  toast,
  Toasts,
  type Tone,
  Tooltip,
} from "./feedback";
export { Checkbox, Field, Input, type Option, Segmented, Select, TextArea } from "./form";
export { Icon, type IconName } from "./icon";
export { Card, Facts, Figure, Figures, Page, titleCount } from "./layout";
export { type Column, type Sort, sorted, Table } from "./table";
export { type Tab, Tabs } from "./tabs";
