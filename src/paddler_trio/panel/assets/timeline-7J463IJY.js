import{C as t,s as e,v as i}from"./chunk-CEJDHSPC.js";function o(){return e(t,{title:"Timeline",children:e(i,{icon:"timeline",title:"Nothing to show"})})}export{o as default};
