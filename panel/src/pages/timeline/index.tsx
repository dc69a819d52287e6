import { Empty, Page } from "../../ui";

export default function TimelinePage() {
  return (
    <Page title="Timeline">
      <Empty icon="timeline" title="Nothing to show" />
    </Page>
  );
}
