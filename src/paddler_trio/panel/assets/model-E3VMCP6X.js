import{C as e,s as o,v as t}from"./chunk-CEJDHSPC.js";function l(){return o(e,{title:"Model",children:o(t,{icon:"model",title:"Nothing to show"})})}export{l as default};
