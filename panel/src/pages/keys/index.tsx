import { Empty, Page } from "../../ui";

export default function KeysPage() {
  return (
    <Page title="Keys">
      <Empty icon="keys" title="Nothing to show" />
    </Page>
  );
}
