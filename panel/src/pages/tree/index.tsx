import { Empty, Page } from "../../ui";

export default function TreePage() {
  return (
    <Page title="Tree">
      <Empty icon="tree" title="Nothing to show" />
    </Page>
  );
}
