import{C as o,s as t,v as e}from"./chunk-CEJDHSPC.js";function s(){return t(o,{title:"Requests",children:t(e,{icon:"requests",title:"Nothing to show"})})}export{s as default};
