import{C as o,s as t,v as e}from"./chunk-CEJDHSPC.js";function i(){return t(o,{title:"Keys",children:t(e,{icon:"keys",title:"Nothing to show"})})}export{i as default};
