import{C as o,s as e,v as t}from"./chunk-CEJDHSPC.js";function r(){return e(o,{title:"Tree",children:e(t,{icon:"tree",title:"Nothing to show"})})}export{r as default};
