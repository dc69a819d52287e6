/** File names of the styles of pages, by page; build.mjs defines it. */
declare const PAGE_STYLES: Readonly<Record<string, string>>;

declare module "*.css";
