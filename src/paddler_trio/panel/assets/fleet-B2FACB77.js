import{C as o,s as t,v as e}from"./chunk-CEJDHSPC.js";function l(){return t(o,{title:"Fleet",children:t(e,{icon:"fleet",title:"Nothing to show"})})}export{l as default};
