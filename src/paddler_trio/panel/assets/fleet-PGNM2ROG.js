import{E as e,R as o,x as t}from"./chunk-74RGZPHY.js";function l(){return t(o,{title:"Fleet",children:t(e,{icon:"fleet",title:"Nothing to show"})})}export{l as default};
