import { Empty, Page } from "../../ui";

export default function FleetPage() {
  return (
    <Page title="Fleet">
      <Empty icon="fleet" title="Nothing to show" />
    </Page>
  );
}
