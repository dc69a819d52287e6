import{C as i,s as t,v as e}from"./chunk-CEJDHSPC.js";function o(){return t(i,{title:"Metrics",children:t(e,{icon:"metrics",title:"Nothing to show"})})}export{o as default};
