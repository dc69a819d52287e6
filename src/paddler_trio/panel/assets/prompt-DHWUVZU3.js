import{C as e,s as t,v as o}from"./chunk-CEJDHSPC.js";function p(){return t(e,{title:"Prompt",children:t(o,{icon:"prompt",title:"Nothing to show"})})}export{p as default};
