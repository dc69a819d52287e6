import { Empty, Page } from "../../ui";

export default function RequestsPage() {
  return (
    <Page title="Requests">
      <Empty icon="requests" title="Nothing to show" />
    </Page>
  );
}
